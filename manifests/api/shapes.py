"""What the routes of Manifests take as parameters and answer, for readers and for the description of the interface."""

from __future__ import annotations

from typing import Any

from manifests.schema import ManifestBody
from nylorun.http.shape import Query, Shape


class SaveQuery(Query):
    """``dryRun``: every check, nothing written."""

    dry_run: bool = False


class ManifestSavedBy(Shape):
    """Who saved a version: the Subject, else the application."""

    actor: str


class ManifestVersionView(Shape):
    """One version; it never changes."""

    name: str
    version: int
    hash: str
    manifest: ManifestBody
    saved_by: ManifestSavedBy
    created_at: str


class SavedManifestVersion(ManifestVersionView):
    """The answer of a save."""

    created: bool


class ListedManifestVersion(ManifestVersionView):
    """A version in a list, with the number of Environments made from it."""

    environments: int


class ManifestList(Shape):
    """A page of Manifests."""

    manifests: list[ListedManifestVersion]
    next_cursor: str | None


class ManifestVersionList(Shape):
    """A page of versions."""

    versions: list[ListedManifestVersion]
    next_cursor: str | None


class ManifestDeleted(Shape):
    """How many versions are gone."""

    name: str
    deleted: int


class DefinitionFileAnswer(Shape):
    """A definition file that is held."""

    sha256: str
    size: int


class SandboxAnswer(Shape):
    """The sandbox settings: as they were written, and what is in force."""

    config: dict[str, Any]
    effective: dict[str, Any]
