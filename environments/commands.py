"""What callers ask, as frozen values: the shape was checked at the door, the rules are still to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

from vault.bodies import Given

INLINE_FIELDS = (
    "kind", "image", "resources", "storage", "network", "harness", "lifecycle", "setup", "files", "secrets",
)  # fmt: skip


class Unset(Enum):
    """Absent is not ``null``: a member that was not sent changes nothing, ``null`` clears."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class DiskSource:
    """The Disk version a new Environment starts from."""

    environment: str
    version: int | Literal["latest"]


@dataclass(frozen=True, slots=True)
class PutEnvironment:
    """Get or create: ``inline`` holds the fields that were sent, in their normal form."""

    id: str
    manifest: str | None = None
    inline: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] | None = None
    owner: str | Unset | None = UNSET
    source: DiskSource | None = None
    if_match: str | None = None


@dataclass(frozen=True, slots=True)
class CallTool:
    """One Tool call outside a Session. ``hash`` covers tool and input; ``key`` is the Effect key, if any."""

    environment_id: str
    tool: str
    hash: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class WriteSecret:
    """Give a Secret a value. ``given`` is the body that was read; its value hides itself."""

    environment_id: str
    name: str
    given: Given
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteSecret:
    """Remove a Secret. ``request_id`` is a correlation id for the audit."""

    environment_id: str
    name: str
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class ForkEnvironment:
    """A new Environment beside ``source``. ``disk`` is a version number, ``latest`` or ``empty``; ``request_id`` is a
    correlation id for the audit.
    """

    source: str
    id: str
    manifest: str | None = None
    disk: int | Literal["latest", "empty"] = "latest"
    secrets: Literal["copy", "none"] = "copy"
    labels: Mapping[str, str] | None = None
    owner: str | Unset | None = UNSET
    request_id: str | None = None
