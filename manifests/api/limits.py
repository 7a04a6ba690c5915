"""The Tenant's limits on stored content over HTTP."""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework.request import Request

from manifests.api.shapes import ArtifactLimits, ArtifactLimitsAnswer
from manifests.services.limits import put_limits, show_limits
from nylorun.http.openapi import describes
from nylorun.http.view import ApiView
from nylorun.http.words import APP


class ArtifactLimitsView(ApiView):
    """The limits, and what counts against them."""

    word = APP

    @describes(answers={200: ArtifactLimitsAnswer}, summary="Read the limits on stored content")
    def get(self, request: Request) -> HttpResponse:
        """In force now, with the bytes in use."""
        return self.answer(show_limits())

    @describes(body=ArtifactLimits, answers={200: ArtifactLimitsAnswer}, summary="Replace the limits on stored content")
    def put(self, request: Request) -> HttpResponse:
        """What is left out has its default again."""
        body = self.body(ArtifactLimits)
        document = body.model_dump(by_alias=True, exclude={"request_id"}, exclude_none=True)
        return self.answer(put_limits(document, actor=self.caller.actor))
