"""Routes that need no credential and read no row of anybody: health, metrics, and the description of the interface."""

from __future__ import annotations

from typing import Literal

from django.http import HttpResponse
from pydantic import BaseModel
from rest_framework.request import Request

from nylorun.http import docs, health, metrics
from nylorun.http.openapi import describes
from nylorun.http.view import ApiView
from nylorun.http.words import PUBLIC


class Alive(BaseModel):
    """The process runs."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Each check is ``ok`` or a reason."""

    status: Literal["ready", "unready"]
    checks: dict[str, str]


class HealthView(ApiView):
    """``GET /healthz``."""

    word = PUBLIC

    @describes(answers={200: Alive}, summary="Whether the process runs")
    def get(self, request: Request) -> HttpResponse:
        """It does, or nobody would answer."""
        return self.answer(Alive())


class ReadyView(ApiView):
    """``GET /readyz``."""

    word = PUBLIC

    @describes(answers={200: Readiness, 503: Readiness}, summary="Whether the process can work")
    def get(self, request: Request) -> HttpResponse:
        """Every check, bounded."""
        ready, checks = health.report()
        return self.answer(
            Readiness(status="ready" if ready else "unready", checks=checks),
            status=200 if ready else 503,
            headers={"Cache-Control": "no-store"},
        )


class MetricsView(ApiView):
    """``GET /metrics``: numbers only; no ids, no names."""

    word = PUBLIC

    @describes(answers={200: "text/plain"}, summary="Metrics for Prometheus")
    def get(self, request: Request) -> HttpResponse:
        """Counters of this process and values of the rows at this moment."""
        return HttpResponse(metrics.text(), content_type=metrics.CONTENT_TYPE)


class OpenApiView(ApiView):
    """``GET /v1/openapi.json``."""

    word = PUBLIC

    @describes(answers={200: "application/json"}, summary="This interface as an OpenAPI 3.1 document")
    def get(self, request: Request) -> HttpResponse:
        """The document, made once."""
        return HttpResponse(docs.document(), content_type="application/json; charset=utf-8")


class DocsView(ApiView):
    """``GET /v1/docs``."""

    word = PUBLIC

    @describes(answers={200: "text/html"}, summary="This interface, to browse")
    def get(self, request: Request) -> HttpResponse:
        """One page; every asset comes from this server."""
        response = HttpResponse(docs.page(), content_type="text/html; charset=utf-8")
        response.headers["Content-Security-Policy"] = docs.POLICY
        return response
