"""Shapes of the requests on Environments: what the door checks before a command exists."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import MISSING, AfterValidator, AwareDatetime, Field, StringConstraints, model_validator

from environments.commands import UNSET, DiskSource, ForkEnvironment, PutEnvironment
from manifests.references import Reference
from manifests.schema import ManifestBody, normal
from nylorun.http.problems import Misfit, between
from nylorun.http.shape import Body, Paging, Post, Query, Shape
from nylorun.kernel.errors import InvalidRequest
from nylorun.kernel.ids import ID_MAX, LABEL_KEY, LABEL_VALUE, LABELS_MAX, is_id, is_subject
from nylorun.record.events import READ_MAX, known_type
from vault.bindings import variable_problem

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def _id(text: str) -> str:
    if not is_id(text):
        raise ValueError(f"must be an id of 1 to {ID_MAX} characters")
    return text


def _subject(text: str) -> str:
    if not is_subject(text):
        raise ValueError("must be 1 to 200 printable ASCII characters and no reserved name")
    return text


def _reference(text: str) -> str:
    return str(Reference.parse(text))


def _labels(labels: dict[str, str]) -> dict[str, str]:
    problems = [
        {"path": f"/{key.replace('~', '~0').replace('/', '~1')}", "message": message}
        for key, value in labels.items()
        for message in _label_problems(key, value)
    ]
    if problems:
        raise Misfit(problems)  # type: ignore[arg-type]
    return labels


def _label_problems(key: str, value: str) -> list[str]:
    problems = []
    if LABEL_KEY.fullmatch(key) is None:
        problems.append("must have a name of 1 to 63 letters, digits, ., _, / or -, with a letter or digit at its ends")
    if LABEL_VALUE.fullmatch(value) is None:
        problems.append("must be at most 256 printable ASCII characters")
    return problems


EnvironmentId = Annotated[str, AfterValidator(_id)]
Subject = Annotated[str, AfterValidator(_subject)]
Labels = Annotated[dict[str, str], Field(max_length=LABELS_MAX), AfterValidator(_labels)]


class From(Shape):
    """The Disk version a new Environment starts from."""

    environment: EnvironmentId
    version: Annotated[int, Field(ge=1)] | Literal["latest"]


class PutEnvironmentBody(ManifestBody, Body):
    """``PUT /v1/environments/{id}``: a Manifest reference or inline fields, never both."""

    manifest: Annotated[str, AfterValidator(_reference)] | MISSING = MISSING
    labels: Labels | MISSING = MISSING
    owner_user_id: Subject | MISSING | None = MISSING
    source: Annotated[From | MISSING, Field(alias="from")] = MISSING

    def command(self, environment_id: str, if_match: str | None) -> PutEnvironment:
        """What is asked; absent members stay absent."""
        sent = self.model_fields_set
        source = self.source
        return PutEnvironment(
            environment_id,
            manifest=self.manifest if "manifest" in sent else None,  # type: ignore[arg-type]
            inline=normal(self),
            labels=self.labels if "labels" in sent else None,  # type: ignore[arg-type]
            owner=self.owner_user_id if "owner_user_id" in sent else UNSET,  # type: ignore[arg-type]
            source=DiskSource(source.environment, source.version) if isinstance(source, From) else None,
            if_match=if_match,
        )


class Nothing(Post):
    """A ``POST`` that takes nothing but its correlation id."""


class RestoreBody(Post):
    """``POST …/restore``."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]


class ForkBody(Post):
    """``POST …/fork``: the new id, and what it starts from."""

    id: EnvironmentId
    manifest: Annotated[str, AfterValidator(_reference)] | MISSING = MISSING
    disk: Annotated[int, Field(ge=1, le=2**31 - 1)] | Literal["latest", "empty"] = "latest"
    secrets: Literal["copy", "none"] = "copy"
    labels: Labels | MISSING = MISSING
    owner_user_id: Subject | MISSING | None = MISSING
    dry_run: bool = False

    def command(self, source: str, request_id: str) -> ForkEnvironment:
        """What is asked; absent members stay absent. ``request_id`` is that of the request, for a body without one."""
        sent = self.model_fields_set
        return ForkEnvironment(
            source,
            self.id,
            manifest=self.manifest if "manifest" in sent else None,  # type: ignore[arg-type]
            disk=self.disk,
            secrets=self.secrets,
            labels=self.labels if "labels" in sent else None,  # type: ignore[arg-type]
            owner=self.owner_user_id if "owner_user_id" in sent else UNSET,  # type: ignore[arg-type]
            request_id=self.request_id or request_id,
        )


class OperationsQuery(Paging):
    """``state`` is repeatable."""

    state: list[Literal["queued", "running", "succeeded", "failed", "cancelled"]] = []


class DeleteQuery(Query):
    """``force`` ends what is in the way."""

    force: bool = False


class ListQuery(Paging):
    """``label=k=v`` is repeatable and means all of them."""

    label: list[str] = []

    def labels(self) -> dict[str, str]:
        """The labels asked for; the first ``=`` splits."""
        pairs: dict[str, str] = {}
        for text in self.label:
            key, equals, value = text.partition("=")
            if not key or not equals or pairs.get(key, value) != value:
                raise InvalidRequest([{"path": "?label", "message": "must be key=value, with one value for each key"}])
            pairs[key] = value
        return pairs


YEARS = (1970, 9999)


class EventsQuery(Query):
    """Which events of an id: by number, type and recorded time."""

    start: Annotated[int | None, Field(alias="from", ge=0, le=2**62)] = None
    from_seq: Annotated[int | None, Field(ge=0, le=2**62)] = None
    limit: Annotated[int, between(1, READ_MAX)] = 200
    type: list[str] = []
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None

    @model_validator(mode="after")
    def _check(self) -> EventsQuery:
        unknown = [name for name in self.type if not known_type(name)]
        if unknown:
            raise Misfit([{"path": "/type", "message": "must be full event types such as environment.created"}])
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None and not YEARS[0] <= moment.year < YEARS[1]:
                raise Misfit([{"path": f"/{name}", "message": f"must lie in the years {YEARS[0]} to {YEARS[1] - 1}"}])
        if self.start is not None and self.from_seq is not None and self.start != self.from_seq:
            raise Misfit([{"path": "/fromSeq", "message": "must equal from"}])
        return self

    def first(self) -> int:
        """The number to begin with."""
        return self.start if self.start is not None else self.from_seq or 0

    def window(self) -> tuple[datetime | None, datetime | None]:
        """``since`` (inclusive) and ``until`` (exclusive)."""
        return self.since, self.until


class JoinBody(Shape):
    """What an Engine says of itself."""

    environment_id: EnvironmentId
    pod_uid: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")]
    join_token: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    volume_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = None
    address: Annotated[str, StringConstraints(pattern=r"^(?:unix:/.{1,250}|[^\s/]{1,250}:[0-9]{1,5})$")]


# ---------------------------------------------------------------------------------------------------------------- tools

Path = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
FileMode = Annotated[str, StringConstraints(pattern=r"^0[0-7]{3}$")]
BASH_TIMEOUT_MAX = 3_600_000
STDIN_MAX = 1 << 20
READ_DEFAULT, READ_MAX_BYTES = 1 << 20, 4 << 20


class ToolInput(Post):
    """Base of every tool's input."""

    def args(self) -> dict[str, Any]:
        """What the Engine is sent, by wire name."""
        return self.model_dump(by_alias=True, exclude={"request_id", "idempotency_key"}, exclude_none=True)


class Bash(ToolInput):
    """A command of the sandbox user; no terminal."""

    command: Annotated[str, StringConstraints(min_length=1, max_length=65_536)]
    cwd: Path = "/workspace"
    env: Annotated[dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=64)] = {}
    stdin: str = ""
    timeout_ms: Annotated[int, between(1, BASH_TIMEOUT_MAX)] = 120_000

    @model_validator(mode="after")
    def _check(self) -> Bash:
        problems = [
            {"path": f"/env/{name}", "message": message} for name in self.env if (message := _env_problem(name))
        ]
        problems += [
            {"path": f"/env/{name}", "message": "must not hold the character U+0000"}
            for name, value in self.env.items()
            if "\x00" in value
        ]
        if "\x00" in self.command:
            problems.append({"path": "/command", "message": "must not hold the character U+0000"})
        if len(self.stdin.encode()) > STDIN_MAX:
            problems.append({"path": "/stdin", "message": f"must be at most {STDIN_MAX} bytes"})
        if problems:
            raise Misfit(problems)  # type: ignore[arg-type]
        return self


def _env_problem(name: str) -> str | None:
    if _VARIABLE.fullmatch(name) is None:
        return "must have the name of a variable: letters, digits and _, 1 to 128, no digit first"
    return variable_problem(name)


class Read(ToolInput):
    """A slice of a file."""

    path: Path
    offset: Annotated[int, Field(ge=0, le=2**62)] = 0
    limit: Annotated[int, between(1, READ_MAX_BYTES)] = READ_DEFAULT


class Write(ToolInput):
    """A whole file, as text or as base64."""

    path: Path
    content: str | MISSING = MISSING
    content_base64: str | MISSING = MISSING
    mode: FileMode = "0644"
    create_parents: bool = False

    @model_validator(mode="after")
    def _one_content(self) -> Write:
        if ("content" in self.model_fields_set) == ("content_base64" in self.model_fields_set):
            raise Misfit([{"path": "", "message": "must hold one of content and contentBase64"}])
        return self


class List(ToolInput):
    """The entries of a folder."""

    path: Path
    recursive: bool = False


class Stat(ToolInput):
    """One entry."""

    path: Path


class Remove(ToolInput):
    """A file, a link or a folder."""

    path: Path
    recursive: bool = False


class Move(ToolInput):
    """From one path to another."""

    source: Annotated[Path, Field(alias="from")]
    to: Path


TOOLS: dict[str, type[ToolInput]] = {
    "bash": Bash, "read": Read, "write": Write, "list": List, "stat": Stat, "remove": Remove, "move": Move,
}  # fmt: skip


class ToolQuery(Query):
    """``onDisconnect=kill`` ends a streamed command with its client; ``hold`` belongs to Turns."""

    on_disconnect: Literal["kill"] | None = None
    hold: bool = False


class FileQuery(Query):
    """How a raw file is read, written or removed."""

    list: bool = False
    recursive: bool = False
    mode: FileMode | None = None
    parents: bool = True
