"""Where the work on an Environment's disk is done: what the caller of its Engine needs to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from environments.models import Environment
from environments.services.variables import NONE, Variables


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a call goes: everything the caller of the Engine needs, read under the row's lock or just now."""

    environment_id: str
    uid: UUID
    kind: str
    epoch: int
    address: str | None
    memory_mib: int
    disk_bytes: int
    fresh: bool
    """A virtual workspace that was not made yet: its ``files`` are written before the first call."""
    files: Sequence[dict[str, object]] = ()
    driver: str | None = None
    machine: str | None = None
    """A pod's Driver, and the name it knows the pod's machine by."""
    variables: Variables = NONE
    """What a call that takes variables finds there; opened for this call alone."""
    way_out: bool = False
    """A virtual workspace whose Recipe has ``network``: its commands carry a token of their own."""
    egress: Mapping[str, str] | None = field(default=None, repr=False)
    """The way out of this call alone, with its token."""


def workplace_of(row: Environment, disk_bytes: int) -> Workplace:
    """Where a call on this row goes now."""
    fresh = row.kind == "virtual" and row.workspace_at is None
    return Workplace(
        environment_id=row.id,
        uid=row.uid,
        kind=row.kind,
        epoch=row.host_epoch or 0,
        address=row.engine_address,
        memory_mib=_memory(row),
        disk_bytes=disk_bytes,
        fresh=fresh,
        files=row.applied.get("files", ()) if fresh else (),
        driver=row.driver if row.kind == "pod" else None,
        machine=row.k8s_name if row.kind == "pod" else None,
        way_out=row.kind == "virtual" and row.applied.get("network") is not None,
    )


def _memory(row: Environment) -> int:
    return int(str(row.applied.get("resources", {}).get("memory", "1024MiB")).removesuffix("MiB"))
