"""The content of artifact versions over HTTP: bytes, trees, differences, archives, and links to single files."""

from __future__ import annotations

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from manifests.api.artifacts import ZIP, artifact_of
from manifests.api.raw import paced, stored_file
from manifests.api.shapes import ArtifactDiff, ArtifactLink, ArtifactTree, DiffQuery, LinkBody
from manifests.models import Artifact, ArtifactVersion
from manifests.references import VERSION
from manifests.services import links, trees
from manifests.services.artifacts import version_of
from manifests.zips import zip_stream
from nylorun.blobs import Entry
from nylorun.http.openapi import describes
from nylorun.http.ranges import OCTETS, media_type_of, raw_answer
from nylorun.http.view import ApiView
from nylorun.http.words import OWN, PUBLIC
from nylorun.kernel.clock import iso
from nylorun.kernel.errors import InvalidRequest, RequestRejected


class _VersionView(ApiView):
    word = OWN
    kind: str
    """The kind of artifact its routes are for."""

    def version(self) -> tuple[Artifact, ArtifactVersion]:
        """What the path names; 404 when it is missing, 400 for an artifact of the other kind."""
        artifact = artifact_of(self)
        number = self._number()
        version = version_of(artifact, number)
        if artifact.kind != self.kind:
            raise RequestRejected(f"This artifact is a {artifact.kind}: use the routes of a {artifact.kind}.")
        return artifact, version

    def _number(self) -> int | None:
        text = self.segment("number")
        if text == "latest":
            return None
        if VERSION.fullmatch(text) is None:
            raise InvalidRequest([{"path": "{number}", "message": "must be a version: a number from 1, or latest"}])
        return int(text)


class ContentView(_VersionView):
    """The bytes of a file."""

    kind = "file"

    @describes(answers={200: OCTETS, 206: OCTETS}, summary="Read the content of a file")
    def get(self, request: Request, id: str, number: str) -> HttpResponseBase:
        """Whole, or one range."""
        artifact, version = self.version()
        return _content(self, artifact, trees.file_at(version, trees.CONTENT))


class TreeView(_VersionView):
    """The files of a folder."""

    kind = "folder"

    @describes(answers={200: ArtifactTree}, summary="List the files of a folder")
    def get(self, request: Request, id: str, number: str) -> HttpResponse:
        """By path."""
        _, version = self.version()
        return self.answer({"entries": [_shown(entry) for entry in trees.files(version)]})


class FolderFileView(_VersionView):
    """One file of a folder."""

    kind = "folder"

    @describes(answers={200: OCTETS, 206: OCTETS}, summary="Read a file of a folder")
    def get(self, request: Request, id: str, number: str, path: str) -> HttpResponseBase:
        """Whole, or one range."""
        artifact, version = self.version()
        return _content(self, artifact, trees.file_at(version, "/".join(self.segments("path")).encode()))


class DiffView(_VersionView):
    """What changed between two versions of a folder."""

    kind = "folder"

    @describes(query=DiffQuery, answers={200: ArtifactDiff}, summary="Compare two versions of a folder")
    def get(self, request: Request, id: str, number: str) -> HttpResponse:
        """From the version of the query to the one of the path."""
        query = self.query(DiffQuery)
        artifact, version = self.version()
        found = trees.difference(version_of(artifact, query.base), version)
        return self.answer({"added": found.added, "removed": found.removed, "changed": found.changed})


class ZipView(_VersionView):
    """A folder as a ZIP archive."""

    kind = "folder"

    @describes(answers={200: ZIP}, summary="Download a folder as a ZIP archive")
    def get(self, request: Request, id: str, number: str) -> HttpResponseBase:
        """Equal versions give equal bytes."""
        artifact, version = self.version()
        pieces = paced(self, zip_stream(trees.members(version)), None)
        response = raw_answer(pieces, length=None, name=f"{artifact.name}.zip", content_type=ZIP)
        response.headers["Accept-Ranges"] = "none"
        return response


class LinksView(ApiView):
    """Links to an artifact."""

    word = OWN

    @describes(body=LinkBody, answers={201: ArtifactLink}, summary="Make a link to a file")
    def post(self, request: Request, id: str) -> HttpResponse:
        """A URL that whoever holds it may read until it expires."""
        artifact = artifact_of(self)
        body = self.body(LinkBody)
        version = version_of(artifact, body.version)
        url, ends = links.make_link(artifact, version, body.file, body.expires_in)
        return self.answer({"url": url, "expiresAt": iso(ends)}, 201, {"Location": url})


class LinkView(ApiView):
    """What a link leads to."""

    word = PUBLIC

    @describes(answers={200: OCTETS, 206: OCTETS}, summary="Read what a link leads to")
    def get(self, request: Request, token: str) -> HttpResponseBase:
        """Whole, or one range; the token is the credential."""
        response = _content(self, *links.open_link(self.segment("token")))
        response.headers["Cache-Control"] = "private, no-store"
        return response


def _content(view: ApiView, artifact: Artifact, entry: Entry) -> HttpResponseBase:
    """A file of an artifact, under the name and type it has there."""
    if artifact.kind == "file":
        return stored_file(view, entry, name=artifact.name, content_type=artifact.media_type)
    name = trees.path_of(entry).rpartition("/")[2]
    return stored_file(view, entry, name=name, content_type=media_type_of(name))


def _shown(entry: Entry) -> dict[str, object]:
    path = trees.path_of(entry)
    return {
        "path": path,
        "size": entry.size,
        "sha256": f"sha256:{entry.sha256.hex()}",
        "contentType": media_type_of(path.rpartition("/")[2]),
    }
