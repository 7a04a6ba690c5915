"""The disk lease: one column of the row, one holder, held while its ``until`` lies ahead.

* Whoever calls holds the row's lock. Kind ``snapshot`` and ``restore`` refuse calls, stop, reset and delete; ``seed``
  refuses only other disk work.
* A lease names its Operation and attempt: together they are the fence of everything a copy writes back.
* A lapsed lease is free. The Operation that let it lapse fails with ``operation_interrupted`` in the commit that takes
  the lease, since its copy is not worth going on with.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from environments import lifecycle
from environments.models import Environment, Operation
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx
from nylorun.kernel.clock import iso

LeaseKind = Literal["snapshot", "restore", "seed"]

DISK_LEASE = timedelta(minutes=2)
SEED_LEASE = timedelta(minutes=10)
RENEW_SECONDS = 30.0


def lease_for(operation: Operation, row: Environment) -> LeaseKind | None:
    """The lease that the next step of this Operation needs; ``None``: it copies nothing on this row's disk now."""
    if operation.kind == "snapshot":
        return "snapshot"
    if operation.kind == "fork":
        needs = operation.input.get("disk") == "latest" and "version" not in operation.data
        return "snapshot" if needs else None
    if operation.kind == "restore" and row.kind == "virtual":
        return "restore"
    return "seed"


def hold_holder(tx: Tx, row: Environment | None) -> Operation | None:
    """Lock the Operation that the lease column names, so that a commit that takes or ends the lease may end it."""
    id = (row.disk_op or {}).get("operationId") if row is not None else None
    return None if id is None else tx.hold(Rank.OPERATION, Operation.objects.filter(pk=id), id)


def take(row: Environment, operation: Operation, kind: LeaseKind, now: datetime) -> None:
    """Write the lease for this Operation and its attempt; the caller found it free."""
    lease: dict[str, Any] = {
        "kind": kind,
        "operationId": operation.id,
        "attempt": operation.attempt,
        "startedAt": iso(now),
        "until": iso(now + _period(kind)),
    }
    if kind == "restore":
        lease["version"] = operation.data["version"]
    row.write(disk_op=lease)


def renew(row: Environment, now: datetime) -> None:
    """Move ``until`` on; the caller found the lease to be its own."""
    lease: dict[str, Any] = dict(row.disk_op or {})
    row.write(disk_op={**lease, "until": iso(now + _period(lease["kind"]))})


def release(row: Environment, operation: Operation) -> None:
    """Clear the lease if it is this Operation's, of whatever attempt."""
    if (row.disk_op or {}).get("operationId") == operation.id:
        row.write(disk_op=None)


def held_by(row: Environment, operation_id: str, attempt: int | None = None) -> bool:
    """Whether the lease column names this Operation (and attempt), lapsed or not: nobody else took it."""
    lease = row.disk_op or {}
    return lease.get("operationId") == operation_id and attempt in (None, lease.get("attempt"))


def held_by_another(row: Environment, operation_id: str, now: datetime) -> Mapping[str, Any] | None:
    """The live lease of another Operation, if there is one."""
    lease = lifecycle.lease(row, now)
    return None if lease is None or lease["operationId"] == operation_id else lease


def _period(kind: str) -> timedelta:
    return SEED_LEASE if kind == "seed" else DISK_LEASE
