"""Shapes of the answers, for the description of the interface; ``services/present.py`` makes the values."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime

from nylorun.http.shape import Shape


class Slot(Shape):
    """A declared Secret, and whether it holds a value."""

    name: str
    type: str
    required: bool
    set: bool


class Pod(Shape):
    """Where the machine stands."""

    desired: Literal["running", "suspended"]
    observed: Literal["creating", "running", "suspended", "lost", "failed"]
    volume_generation: int
    host_epoch: int
    reason: str | None = None
    image_digest: str | None = None
    unenforced: list[Literal["cpus", "memory", "pids", "storage"]] | None = None


class SessionOn(Shape):
    """A Session that names it."""

    id: str
    active_turn_id: str | None


class EnvironmentView(Shape):
    """One Environment as callers see it."""

    id: str
    kind: Literal["virtual", "pod", "none"]
    labels: dict[str, str]
    manifest: dict[str, Any]
    manifest_name: str | None = None
    manifest_version: int | None = None
    manifest_hash: str
    forked_from: dict[str, Any] | None = None
    slots: list[Slot] | None = None
    version: int
    applied_version: int
    owner_user_id: str | None
    state: Literal["ready", "creating", "running", "stopped"]
    pod: Pod | None = None
    disk: dict[str, Any] | None = None
    sessions: list[SessionOn]
    suspend_at: AwareDatetime | None = None
    delete_at: AwareDatetime | None = None
    last_used_at: AwareDatetime
    created_at: AwareDatetime
    updated_at: AwareDatetime


class SecretInfo(Shape):
    """A Secret without its value: its binding, and the names of its headers."""

    name: str
    type: Literal["environment_variable", "environment_secret", "bearer", "headers"]
    allowed_hosts: list[str] | None = None
    inject: dict[str, str] | None = None
    url: str | None = None
    via: str | None = None
    identity: dict[str, str] | None = None
    header_names: list[str] | None = None
    created_at: AwareDatetime
    rotated_at: AwareDatetime | None = None


class Secrets(Shape):
    """Every Secret of an Environment, by creation."""

    secrets: list[SecretInfo]


class SecretDeleted(Shape):
    """Whether this request removed it."""

    name: str
    deleted: bool


class Environments(Shape):
    """A page of Environments."""

    environments: list[EnvironmentView]
    next_cursor: str | None


class Deleted(Shape):
    """Whether this request deleted it."""

    id: str
    deleted: bool


class Events(Shape):
    """Envelopes by number."""

    events: list[dict[str, Any]]


class Progress(Shape):
    """How far a copy is; ``total`` counts files, once it is known."""

    bytes: int
    files: int
    total: int | None = None


class OperationView(Shape):
    """One piece of long work."""

    id: str
    kind: Literal["snapshot", "restore", "seed", "fork", "setup", "recover"]
    environment_id: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    attempt: int
    progress: Progress | None = None
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    created_at: AwareDatetime
    started_at: AwareDatetime | None = None
    finished_at: AwareDatetime | None = None


class Operations(Shape):
    """A page of Operations."""

    operations: list[OperationView]
    next_cursor: str | None


class DiskVersion(Shape):
    """One numbered tree."""

    version: int
    size: int
    file_count: int
    sha256: str
    cause: Literal["request", "fork", "suspend"]
    actor: str
    operation_id: str
    created_at: AwareDatetime


class Snapshots(Shape):
    """The Disk versions of an Environment, newest first."""

    artifact_id: str | None
    latest_version: int | None
    versions: list[DiskVersion]
    next_cursor: str | None


class Snapshot(Shape):
    """The version that holds the disk now."""

    version: int
    created: bool
    artifact_id: str
    size: int
    file_count: int


class VersionDeleted(Shape):
    """Whether this request deleted it."""

    version: int
    deleted: bool


class Forked(Shape):
    """The new Environment, and what was carried over; a dry run has the plan only."""

    environment: EnvironmentView | None = None
    plan: dict[str, Any]
    dry_run: bool | None = None


class ToolAnswer(Shape):
    """How a served call ended."""

    kind: Literal["completed", "failed"]
    output: dict[str, Any] | None = None
    code: str | None = None
    message: str | None = None


class FileWritten(Shape):
    """A file that was written whole."""

    path: str
    size: int
    sha256: str
    created: bool


class FileDeleted(Shape):
    """Whether this request removed it."""

    path: str
    deleted: bool


class Joined(Shape):
    """What an Engine gets for its join."""

    host_token: str
    egress_token: str
    epoch: int
    expires_in: int
    jwks: dict[str, Any]
