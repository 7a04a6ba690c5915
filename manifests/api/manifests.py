"""Manifests over HTTP: save, list, read, delete, and the JSON Schema of a body."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from manifests import schema
from manifests.api.shapes import (
    ManifestDeleted,
    ManifestList,
    ManifestVersionList,
    ManifestVersionView,
    SavedManifestVersion,
    SaveQuery,
)
from manifests.errors import ManifestNotFound
from manifests.models import Manifest, ManifestVersion
from manifests.queries import environments_by_name, latest_of, version_for, versions_of
from manifests.references import VERSION, Reference, is_name
from manifests.services.remove import remove_manifest
from manifests.services.save import rehearse_save, save_manifest
from manifests.yamlbody import parse_yaml
from nylorun.http.openapi import describes
from nylorun.http.paging import Listing, Position
from nylorun.http.shape import Paging, parse_json
from nylorun.http.view import ApiView
from nylorun.http.words import PUBLIC, PUBLISH, READ
from nylorun.kernel.clock import iso
from nylorun.kernel.errors import InvalidRequest

JSON, YAML = "application/json", "application/yaml"
Used = tuple[ManifestVersion, int]


class _NamedView(ApiView):
    def name(self) -> str:
        """The name in the path, by its grammar."""
        name = self.segment("name")
        if not is_name(name):
            message = "must be 1 to 63 lower-case letters, digits, dots, dashes and underscores"
            raise InvalidRequest([{"path": "{name}", "message": message}])
        return name


class ManifestsView(ApiView):
    """The latest version of each name."""

    word = READ

    @describes(query=Paging, answers={200: ManifestList}, summary="List Manifests")
    def get(self, request: Request) -> HttpResponseBase:
        """By name; ``environments`` counts over all versions of a name."""
        listing = Listing[Used](read=_read_names, position=lambda row: [row[0].manifest_id])
        return self.answer_list("manifests", listing, self.query(Paging), _shown_used)


class ManifestView(_NamedView):
    """One name: its latest version."""

    words = {"GET": READ, "PUT": PUBLISH, "DELETE": PUBLISH}
    word = PUBLISH

    @describes(answers={200: ManifestVersionView}, summary="Read the latest version")
    def get(self, request: Request, name: str) -> HttpResponse:
        """The latest version."""
        return self.answer(shown(version_for(Reference(self.name()))))

    @describes(
        body=schema.SaveRequest,
        query=SaveQuery,
        answers={200: SavedManifestVersion, 201: SavedManifestVersion},
        summary="Save a version",
        body_types=(JSON, YAML),
    )
    def put(self, request: Request, name: str) -> HttpResponse:
        """Save a version, or rehearse it with ``?dryRun=true``."""
        manifest, document = self.name(), self._document()
        if self.query(SaveQuery).dry_run:
            rehearsed = rehearse_save(manifest, document)
            return self.answer(
                {
                    "dryRun": True,
                    "version": rehearsed.version,
                    "hash": rehearsed.hash,
                    "created": rehearsed.created,
                    "changes": rehearsed.changes,
                }
            )
        saved = save_manifest(manifest, document, actor=self.caller.actor)
        body = {**shown(saved.version), "created": saved.created}
        if not saved.created:
            return self.answer(body)
        return self.answer(body, 201, {"Location": f"{self.request.path_info}/versions/{saved.version.number}"})

    @describes(answers={200: ManifestDeleted}, summary="Delete a Manifest")
    def delete(self, request: Request, name: str) -> HttpResponse:
        """Delete every version, when nothing was made from any."""
        manifest = self.name()
        return self.answer({"name": manifest, "deleted": remove_manifest(manifest)})

    def _document(self) -> dict[str, Any]:
        kind, raw = self.document((JSON, YAML))
        return parse_yaml(raw) if kind == YAML else parse_json(raw)


class VersionsView(_NamedView):
    """The versions of one name."""

    word = READ

    @describes(query=Paging, answers={200: ManifestVersionList}, summary="List versions")
    def get(self, request: Request, name: str) -> HttpResponseBase:
        """Newest first."""
        manifest, query = self.name(), self.query(Paging)
        if not Manifest.objects.filter(pk=manifest).exists():
            raise ManifestNotFound(manifest)

        def read(after: Position | None, count: int) -> Sequence[Used]:
            rows = versions_of(manifest) if after is None else versions_of(manifest).filter(number__lt=after[0])
            return [(row, cast(Any, row).used) for row in rows[:count]]

        listing = Listing[Used](read=read, position=lambda row: [row[0].number])
        return self.answer_list("versions", listing, query, _shown_used)


class VersionView(_NamedView):
    """One version."""

    word = READ

    @describes(answers={200: ManifestVersionView}, summary="Read a version")
    def get(self, request: Request, name: str, number: str) -> HttpResponse:
        """The version of this number."""
        manifest, text = self.name(), self.segment("number")
        if VERSION.fullmatch(text) is None:
            raise InvalidRequest([{"path": "{number}", "message": "must be a version: a number from 1"}])
        return self.answer(shown(version_for(Reference(manifest, int(text)))))


class SchemaView(ApiView):
    """The JSON Schema of a Manifest body."""

    word = PUBLIC

    @describes(answers={200: "application/schema+json"}, summary="JSON Schema of a Manifest body")
    def get(self, request: Request) -> HttpResponse:
        """JSON Schema 2020-12."""
        return self.answer(_json_schema())


def shown(version: ManifestVersion) -> dict[str, Any]:
    """A version as every route shows it."""
    return {
        "name": version.manifest_id,
        "version": version.number,
        "hash": version.hash,
        "manifest": version.body,
        "savedBy": {"actor": version.saved_by},
        "createdAt": iso(version.created_at),
    }


def _shown_used(row: Used) -> dict[str, Any]:
    return {**shown(row[0]), "environments": row[1]}


def _read_names(after: Position | None, count: int) -> Sequence[Used]:
    rows = Manifest.objects.order_by("name") if after is None else Manifest.objects.filter(name__gt=after[0])
    names = list(rows.order_by("name").values_list("name", flat=True)[:count])
    used = environments_by_name(names)
    return [(version, used.get(version.manifest_id, 0)) for version in latest_of(names)]


@cache
def _json_schema() -> dict[str, Any]:
    return schema.json_schema()
