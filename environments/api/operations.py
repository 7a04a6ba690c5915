"""Operations over HTTP: read, wait for, list, cancel; and how a request that made one is answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from environments.api.shapes import Nothing, OperationsQuery
from environments.api.views import Operations
from environments.api.views import OperationView as Shown
from environments.errors import OperationCancelled, OperationFinished
from environments.services import operation_views, operations
from environments.services.operation_views import Seen
from environments.tools.awaiting import await_end
from nylorun.http.openapi import describes
from nylorun.http.paging import Listing, Position
from nylorun.http.prefer import Prefer, idempotency_key, prefer_of
from nylorun.http.shape import Post
from nylorun.http.view import ApiView
from nylorun.http.words import READ, WRITE
from nylorun.kernel.errors import ApiError, NotFound, RequestRejected


class _Failed(ApiError):
    """The error an Operation ended with, as its row holds it; each one has a class of its own where it was raised."""

    code, status = "internal_error", 500

    def __init__(self, operation: Seen) -> None:
        error = operation.error
        details = dict(error.get("details") or {})
        super().__init__(str(error.get("message", "")), details=details, retry_after=details.get("retryAfterSeconds"))
        self.code = str(error.get("code", self.code))  # type: ignore[misc]  # of this one instance
        self.status = operation.status or 500  # type: ignore[misc]


class OperationAnswers(ApiView):
    """What every view that starts an Operation shares."""

    def refuse_key(self, body: Post) -> None:
        """Refuse an idempotency key rather than promise what is not kept."""
        if idempotency_key(self.header("Idempotency-Key"), body.idempotency_key) is not None:
            raise RequestRejected("Idempotency keys are not served here by this version: send the request without one.")

    def answer_end(self, operation_id: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Wait as ``Prefer`` says; the result, the error it ended with, or 202 with the Operation."""
        prefer = prefer_of(self.header("Prefer"))
        operation = await_end(operation_id, prefer.wait)
        applied = _applied(prefer)
        if operation.state == "succeeded":
            more = {**applied, **(headers or {})}
            return self.answer(operation.result, status=operation.status or 200, headers=more)
        if operation.state == "failed":
            raise _Failed(operation)
        if operation.state == "cancelled":
            raise OperationCancelled(operation.id)
        return self.answer_accepted(operation, applied)

    def answer_accepted(self, operation: Seen, headers: Mapping[str, str]) -> HttpResponse:
        """It goes on: where to look, and when."""
        where = {"Location": f"/v1/operations/{operation.id}", "Retry-After": "1"}
        return self.answer(operation.view, status=202, headers={**where, **headers})


class OperationView(ApiView):
    """One Operation."""

    word = READ

    @describes(answers={200: Shown}, summary="Read an Operation, or wait for its end")
    def get(self, request: Request, id: str) -> HttpResponse:
        """The Operation; with ``Prefer: wait=N`` after its end or ``N`` seconds."""
        operation = reached(self, self.segment("id"))
        prefer = prefer_of(self.header("Prefer"))
        if prefer.wait:
            operation = await_end(operation.id, prefer.wait)
        return self.answer(operation.view, headers=_applied(prefer))


class OperationsView(ApiView):
    """The Operations of one Environment."""

    word = READ

    @describes(query=OperationsQuery, answers={200: Operations}, summary="List the Operations of an Environment")
    def get(self, request: Request, id: str) -> HttpResponseBase:
        """By id, in the states asked for."""
        environment_id = self.environment_id()
        query = self.query(OperationsQuery)

        def read(after: Position | None, count: int) -> list[dict[str, Any]]:
            return operation_views.page(environment_id, query.state, str(after[0]) if after else "", count)

        listing = Listing(read, position=lambda view: [view["id"]])
        return self.answer_list("operations", listing, query, lambda view: view)


class CancelView(ApiView):
    """Ask for an Operation's end."""

    word = WRITE

    @describes(body=Nothing, answers={200: Shown}, summary="Cancel an Operation")
    def post(self, request: Request, id: str) -> HttpResponse:
        """Queued work ends here, running work at its next step."""
        found = reached(self, self.segment("id"))
        self.body(Nothing)
        cancelled = operations.cancel(found.id)
        now = operation_views.find(found.id)
        if not cancelled:
            raise OperationFinished(now.id, now.state)
        return self.answer(now.view)


def reached(view: ApiView, operation_id: str) -> Seen:
    """The Operation when its Environment is in the Caller's reach; else it looks missing."""
    operation = operation_views.find(operation_id)
    if not view.caller.reaches(operation.environment_id):
        raise NotFound
    return operation


def _applied(prefer: Prefer) -> dict[str, str]:
    return {"Preference-Applied": prefer.applied} if prefer.applied else {}
