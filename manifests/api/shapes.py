"""What the routes of Manifests take as parameters and answer, for readers and for the description of the interface."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from manifests.queries import VERSION_MAX
from manifests.schema import ManifestBody, relative_path
from manifests.zips import is_file_name
from nylorun.http.problems import between
from nylorun.http.shape import Body, Paging, Post, Query, Shape
from nylorun.kernel.ids import ID_MAX, is_id

BYTES_MAX = 2**50
"""A limit on bytes may be as large as a pebibyte."""


def _file_name(text: str) -> str:
    if not is_file_name(text):
        raise ValueError("must be 1 to 255 characters without /, \\ and control characters, and not . or ..")
    return text


def _session(text: str) -> str:
    if not is_id(text):
        raise ValueError(f"must be an id of 1 to {ID_MAX} characters")
    return text


SessionId = Annotated[str, AfterValidator(_session)]
Number = Annotated[int, Field(ge=1, le=VERSION_MAX)]
Bytes = Annotated[int, Field(ge=0, le=BYTES_MAX)]


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


class NewArtifactQuery(Query):
    """What an artifact is made with, beside its bytes."""

    name: Annotated[str, AfterValidator(_file_name)]
    session_id: SessionId | None = None
    label: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    kind: Literal["file", "folder"] = "file"


class ArtifactsQuery(Paging):
    """The artifacts of one Session, or all."""

    session_id: SessionId | None = None


class DiffQuery(Query):
    """The version to compare with."""

    base: Annotated[int, between(1, VERSION_MAX), Field(alias="from")]


class LinkBody(Post):
    """What a link is for: a file artifact's content, or one ``file`` of a folder."""

    version: Number | None = None
    expires_in: Annotated[int, Field(ge=1, le=900)] = 300
    file: Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(relative_path)] | None = None


class ArtifactLimits(Body):
    """Limits on stored content; what is left out has its default."""

    file_bytes: Bytes | None = None
    total_bytes: Bytes | None = None


class ArtifactView(Shape):
    """A file or folder in numbered versions."""

    id: str
    name: str
    kind: Literal["file", "folder"]
    media_type: str
    session_id: str | None
    label: str | None
    latest_version: int | None
    created_at: str


class ArtifactVersionView(Shape):
    """One version; it never changes."""

    version: int
    size: int
    sha256: str
    created_at: str


class ArtifactMade(Shape):
    """An artifact and the version that was added."""

    artifact: ArtifactView
    version: ArtifactVersionView


class ArtifactDetail(Shape):
    """An artifact and its versions, newest first."""

    artifact: ArtifactView
    versions: list[ArtifactVersionView]


class ArtifactList(Shape):
    """A page of artifacts."""

    artifacts: list[ArtifactView]
    next_cursor: str | None


class ArtifactEntry(Shape):
    """A file of a folder."""

    path: str
    size: int
    sha256: str
    content_type: str


class ArtifactTree(Shape):
    """The files of a folder, by path."""

    entries: list[ArtifactEntry]


class ArtifactDiff(Shape):
    """Paths of files that differ between two versions of a folder."""

    added: list[str]
    removed: list[str]
    changed: list[str]


class ArtifactLink(Shape):
    """A URL that needs no other credential until it expires."""

    url: str
    expires_at: str


class ArtifactDeleted(Shape):
    """Whether there was one."""

    artifact_id: str
    deleted: bool


class ArtifactLimitsAnswer(Shape):
    """The limits in force, and the bytes of all stored content, each content counted once."""

    file_bytes: int
    total_bytes: int
    used_bytes: int
