"""The Tenant's sandbox settings over HTTP."""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework.request import Request

from manifests.api.shapes import SandboxAnswer
from manifests.services.sandbox import put_sandbox, show_sandbox
from manifests.settings import SandboxRequest
from nylorun.http.openapi import describes
from nylorun.http.shape import parse_json
from nylorun.http.view import JSON_TYPES, ApiView
from nylorun.http.words import APP


class SandboxView(ApiView):
    """The whole document, and what is in force."""

    word = APP

    @describes(answers={200: SandboxAnswer}, summary="Read the sandbox settings")
    def get(self, request: Request) -> HttpResponse:
        """The document as it was written, and every default filled in."""
        return self.answer(show_sandbox())

    @describes(body=SandboxRequest, answers={200: SandboxAnswer}, summary="Replace the sandbox settings")
    def put(self, request: Request) -> HttpResponse:
        """Replace the whole document."""
        _, raw = self.document(JSON_TYPES)
        return self.answer(put_sandbox(parse_json(raw), actor=self.caller.actor))
