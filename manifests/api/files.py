"""Definition files over HTTP: sent once under their hash, asked for with ``HEAD``."""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework.request import Request

from manifests.api.shapes import DefinitionFileAnswer
from manifests.schema import DEFINITION
from manifests.services.files import DEFINITION_FILE_MAX, Kept, held_file, keep_file
from nylorun.http.openapi import describes
from nylorun.http.view import ApiView
from nylorun.http.words import WRITE
from nylorun.kernel.errors import InvalidRequest, NotFound


class DefinitionFileView(ApiView):
    """One definition file: ``sha256:`` and 64 lower-case hex digits."""

    word = WRITE

    @describes(
        answers={200: DefinitionFileAnswer, 201: DefinitionFileAnswer},
        summary="Send a definition file",
        body_types=("application/octet-stream",),
    )
    def put(self, request: Request, name: str) -> HttpResponse:
        """Hold the content; held content is not read again."""
        kept = keep_file(self._sha256(), lambda: self.raw_body(DEFINITION_FILE_MAX, "file").chunks())
        headers = {"Location": f"/v1/files/sha256:{kept.sha256}"} if kept.created else None
        return self.answer(_shown(kept), 201 if kept.created else 200, headers)

    @describes(answers={200: DefinitionFileAnswer}, summary="Ask whether a definition file is held")
    def head(self, request: Request, name: str) -> HttpResponse:
        """200 when it is held, else 404."""
        held = held_file(self._sha256())
        if held is None:
            raise NotFound
        return self.answer(_shown(held))

    def _sha256(self) -> str:
        name = self.segment("name")
        if DEFINITION.fullmatch(name) is None:
            message = "must be sha256: and 64 lower-case hex digits"
            raise InvalidRequest([{"path": "{name}", "message": message}])
        return name.removeprefix("sha256:")


def _shown(file: Kept) -> dict[str, object]:
    return {"sha256": f"sha256:{file.sha256}", "size": file.size}
