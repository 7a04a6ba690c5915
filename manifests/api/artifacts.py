"""Artifacts over HTTP: raw bytes in, raw bytes out, and what is known of them as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from manifests.api.shapes import (
    ArtifactDeleted,
    ArtifactDetail,
    ArtifactList,
    ArtifactMade,
    ArtifactsQuery,
    NewArtifactQuery,
)
from manifests.models import Artifact, ArtifactVersion
from manifests.services import artifacts
from manifests.services.artifacts import NewArtifact
from nylorun.http.body import is_at_hand
from nylorun.http.openapi import describes
from nylorun.http.paging import Listing, Position
from nylorun.http.prefer import idempotency_key
from nylorun.http.ranges import OCTETS, media_type_of
from nylorun.http.view import ApiView
from nylorun.http.waiting import waiting
from nylorun.http.words import OWN
from nylorun.kernel.clock import iso
from nylorun.kernel.errors import RequestRejected
from nylorun.tenant.limits import file_bytes

ZIP = "application/zip"
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}")


class ArtifactsView(ApiView):
    """The artifacts a Caller reaches."""

    word = OWN

    @describes(query=ArtifactsQuery, answers={200: ArtifactList}, summary="List artifacts")
    def get(self, request: Request) -> HttpResponseBase:
        """Oldest first."""
        query = self.query(ArtifactsQuery)

        def read(after: Position | None, count: int) -> Sequence[Artifact]:
            place = None if after is None else (datetime.fromisoformat(str(after[0])), str(after[1]))
            return artifacts.page(self.caller, query.session_id, place, count)

        listing = Listing[Artifact](read=read, position=lambda row: [row.created_at.isoformat(), row.pk])
        return self.answer_list("artifacts", listing, query, shown)

    @describes(
        query=NewArtifactQuery,
        answers={201: ArtifactMade},
        summary="Upload an artifact",
        body_types=(OCTETS, ZIP),
    )
    def post(self, request: Request) -> HttpResponse:
        """The bytes of a file, or the ZIP of a folder, become version 1."""
        query = self.query(NewArtifactQuery)
        media_type = ZIP if query.kind == "folder" else _media_type(self.request, query.name)
        wanted = NewArtifact(query.name, query.kind, media_type, query.label, query.session_id)
        refuse_key(self)
        limit = file_bytes()
        body = self.raw_body(limit, "fileBytes")
        with taking_time(self):
            made = artifacts.create(self.caller, wanted, body, limit)
        return made_answer(self, made)


class ArtifactOneView(ApiView):
    """One artifact."""

    word = OWN

    @describes(answers={200: ArtifactDetail}, summary="Read an artifact")
    def get(self, request: Request, id: str) -> HttpResponse:
        """The artifact and its versions, newest first."""
        artifact = artifact_of(self)
        versions = artifact.versions.order_by("-number")
        return self.answer({"artifact": shown(artifact), "versions": [shown_version(version) for version in versions]})

    @describes(answers={200: ArtifactDeleted}, summary="Delete an artifact")
    def delete(self, request: Request, id: str) -> HttpResponse:
        """With all its versions."""
        artifact_id = self.segment("id")
        deleted = artifacts.delete(self.caller, artifact_id)
        return self.answer({"artifactId": artifact_id, "deleted": deleted})


class ArtifactVersionsView(ApiView):
    """The versions of an artifact."""

    word = OWN

    @describes(answers={201: ArtifactMade}, summary="Upload a version", body_types=(OCTETS, ZIP))
    def post(self, request: Request, id: str) -> HttpResponse:
        """The bytes become the next version."""
        artifact = artifact_of(self)
        refuse_key(self)
        limit = file_bytes()
        body = self.raw_body(limit, "fileBytes")
        with taking_time(self):
            made = artifacts.add_version(self.caller, artifact, body, limit)
        return made_answer(self, made)


def artifact_of(view: ApiView) -> Artifact:
    """The artifact named in the path; the opaque 404 when it is missing or out of reach."""
    return artifacts.find(view.caller, view.segment("id"))


def refuse_key(view: ApiView) -> None:
    """An upload with an idempotency key would promise what is not kept: its answer is not stored."""
    if idempotency_key(view.header("Idempotency-Key"), None) is not None:
        raise RequestRejected(
            "Idempotency keys of uploads are not served by this version: send the upload without a key."
        )


def taking_time(view: ApiView) -> AbstractContextManager[None]:
    """A place among the waiting requests for a body that comes at its sender's pace."""
    return nullcontext() if is_at_hand(view.request._request.environ) else waiting()  # type: ignore[attr-defined]


def made_answer(view: ApiView, made: tuple[Artifact, ArtifactVersion]) -> HttpResponse:
    """201 with the artifact and the new version."""
    artifact, version = made
    body = {"artifact": shown(artifact), "version": shown_version(version)}
    return view.answer(body, 201, {"Location": f"/v1/artifacts/{artifact.pk}"})


def shown(artifact: Artifact) -> dict[str, object]:
    """An artifact as every route shows it."""
    return {
        "id": artifact.pk,
        "name": artifact.name,
        "kind": artifact.kind,
        "mediaType": artifact.media_type,
        "sessionId": artifact.session_id,
        "label": artifact.label,
        "latestVersion": artifact.latest_version,
        "createdAt": iso(artifact.created_at),
    }


def shown_version(version: ArtifactVersion) -> dict[str, object]:
    """A version as every route shows it."""
    return {
        "version": version.number,
        "size": version.size,
        "sha256": version.sha256,
        "createdAt": iso(version.created_at),
    }


def _media_type(request: Request, name: str) -> str:
    """``Content-Type`` without its parameters; the name says it when the header does not."""
    sent = str(request.META.get("CONTENT_TYPE") or "").partition(";")[0].strip().lower()
    return sent if sent != OCTETS and _MEDIA_TYPE.fullmatch(sent) else media_type_of(name)
