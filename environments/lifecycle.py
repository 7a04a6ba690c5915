"""The automaton of a pod: what each command writes. Pure; ``docs/lifecycle.md`` is generated from here.

Two columns, two writers: ``desired`` is what requests want, ``observed`` is what was seen. A command answers with a
:class:`Change`; the service that asked holds the row's lock and writes it with its events and outbox row in one commit.

Fences a change moves: ``rev`` (every new wish: a new op id), ``host_epoch`` (Engine and egress tokens of earlier pods
end), ``volume_gen`` with ``k8s_name`` (every new volume has its own name).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from nylorun.kernel import durations
from nylorun.kernel.ids import pod_name

Desired = Literal["running", "suspended", "deleted"]
Observed = Literal["creating", "running", "suspended", "lost", "failed", "deleting"]
SuspendReason = Literal["stop", "idle", "restart"]

REASON_MAX = 2048
DISK_REFUSING = ("snapshot", "restore")


class PodRow(Protocol):
    """The columns the rules read."""

    id: str
    kind: str
    recipe: Any
    version: int
    applied: Any
    disk_op: Any
    desired: str | None
    observed: str | None
    rev: int | None
    host_epoch: int | None
    volume_gen: int | None
    k8s_name: str | None
    retiring: str | None
    last_active_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """What one command writes: columns, events of its stream, and whether the machine must be looked at."""

    patch: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()
    reconcile: bool = False

    @property
    def nothing(self) -> bool:
        """The row is already as asked."""
        return not self.patch and not self.events and not self.reconcile


NOTHING = Change()


def lease(row: PodRow, now: datetime) -> Mapping[str, Any] | None:
    """The disk lease held now: one that lapsed is no lease."""
    held = row.disk_op
    if not held or datetime.fromisoformat(held["until"]) <= now:
        return None
    return dict(held)


def refusing_lease(row: PodRow, now: datetime) -> bool:
    """Whether a snapshot or restore holds the disk: the leases that refuse calls, stop, reset and delete."""
    held = lease(row, now)
    return held is not None and held["kind"] in DISK_REFUSING


def create(*, tenant: str, environment_id: str, driver: str, now: datetime, idle: timedelta) -> dict[str, Any]:
    """The pod columns of a new row: a pod is made at once."""
    return {
        "driver": driver,
        "k8s_name": pod_name(tenant, environment_id, 0),
        "volume_gen": 0,
        "desired": "running",
        "observed": "creating",
        "rev": 1,
        "host_epoch": 0,
        "started_at": now,
        "last_active_at": now,
        "idle_at": now + idle,
    }


def needs_wake(row: PodRow) -> bool:
    """Whether a start has to ask the pod to run: it is stopped or failed. A lost one cannot be woken."""
    return row.desired != "running" or row.observed == "failed"


def wake(row: PodRow, *, now: datetime, idle: timedelta) -> Change:
    """Ask a stopped or failed pod to run, with its Recipe applied; a running one is left alone."""
    if not needs_wake(row):
        return NOTHING
    return Change(
        {
            "desired": "running",
            "observed": "creating",
            "rev": _next(row.rev),
            "started_at": now,
            "last_active_at": now,
            "idle_at": now + idle,
            "reason": None,
            "suspend_after": None,
            "applied": row.recipe,
            "applied_version": row.version,
        },
        reconcile=True,
    )


def suspend(row: PodRow, reason: SuspendReason, snapshot: Mapping[str, Any] | None = None) -> Change:
    """Stop the machine and keep the volume. Suspended, lost and failed pods hold no machine to stop.

    A failed pod wanted running becomes wanted suspended, so that nothing starts it but the next wake. ``snapshot`` is
    what became of the copy made before it.
    """
    if row.desired != "running" or row.observed == "lost":
        return NOTHING
    return Change(
        {
            "desired": "suspended",
            "rev": _next(row.rev),
            "host_epoch": _next(row.host_epoch),
            "idle_at": None,
            "engine_address": None,
        },
        events=[("suspended", {"reason": reason} if snapshot is None else {"reason": reason, "snapshot": snapshot})],
        reconcile=True,
    )


def new_volume(
    row: PodRow,
    *,
    tenant: str,
    now: datetime,
    idle: timedelta,
    seed: Mapping[str, Any] | None = None,
    reason: Literal["restore", "lost"] | None = None,
) -> Change:
    """A new pod on a new volume under a new name; the old object and volume are retired. Leaves lost and failed.

    The caller refused already when ``retiring`` is set. Without a seed files and setup run on the empty disk.
    """
    generation = _next(row.volume_gen)
    payload: dict[str, Any] = {"volumeGeneration": generation}
    if reason is not None:
        payload["reason"] = reason
    if seed is not None:
        payload["version"] = seed["version"]
    return Change(
        {
            "retiring": row.k8s_name,
            "volume_gen": generation,
            "k8s_name": pod_name(tenant, row.id, generation),
            "desired": "running",
            "observed": "creating",
            "rev": _next(row.rev),
            "host_epoch": _next(row.host_epoch),
            "join_token_hash": None,
            "pod_uid": None,
            "volume_id": None,
            "reason": None,
            "suspend_after": None,
            "engine_address": None,
            "started_at": now,
            "last_active_at": now,
            "last_used_at": now,
            "idle_at": now + idle,
            "applied": row.recipe,
            "applied_version": row.version,
            "disk_seed": dict(seed) if seed else None,
            "setup_done_gen": generation if seed else None,
        },
        events=[("reset", payload)],
        reconcile=True,
    )


def fail(row: PodRow, reason: str, setup: Mapping[str, Any] | None = None) -> Change:
    """A start, a copy or a setup command failed: the pod holds no machine, and its next wake starts a new one."""
    kept = reason[:REASON_MAX]
    payload: dict[str, Any] = {"reason": kept}
    if setup is not None:
        payload["setup"] = dict(setup)
    return Change(
        {
            "observed": "failed",
            "reason": kept,
            "rev": _next(row.rev),
            "host_epoch": _next(row.host_epoch),
            "idle_at": None,
            "engine_address": None,
        },
        events=[("failed", payload)],
        reconcile=True,
    )


def lose(row: PodRow, reason: str) -> Change:
    """A joined incarnation's volume is gone or another one: refuses calls until a new volume, a restore or a delete."""
    return Change(
        {
            "observed": "lost",
            "reason": reason[:REASON_MAX],
            "host_epoch": _next(row.host_epoch),
            "idle_at": None,
            "engine_address": None,
        },
        events=[("lost", {"reason": reason[:REASON_MAX]})],
        reconcile=True,
    )


def delete(row: PodRow) -> Change:
    """Gone for every caller at once; the row stays until nothing of its machine is left. The event comes with it."""
    return Change(
        {
            "desired": "deleted",
            "observed": "deleting",
            "rev": _next(row.rev),
            "host_epoch": _next(row.host_epoch),
            "idle_at": None,
            "engine_address": None,
            "delete_check_at": None,
            "disk_op": None,
            "disk_seed": None,
            "suspend_after": None,
        },
        reconcile=True,
    )


def idle_due(row: PodRow, idle: timedelta) -> datetime:
    """When a pod that is left alone from now on is suspended."""
    return (row.last_active_at or row.created_at) + idle


def idle_time(recipe: Mapping[str, Any], tenant: timedelta) -> timedelta:
    """How long a pod of this Recipe is left alone before it is suspended; never longer than the Tenant's."""
    own = recipe.get("lifecycle", {}).get("idle")
    return tenant if own is None else min(durations.duration(own), tenant)


def delete_after(recipe: Mapping[str, Any]) -> timedelta | None:
    """How long an Environment of this Recipe may be unused; ``None``: for ever."""
    after = recipe.get("lifecycle", {}).get("deleteAfter")
    return None if after is None else durations.duration(after)


def op_id(name: str | None, rev: int | None) -> str:
    """The identity of one wish: applying it twice changes nothing."""
    return f"{name}.r{rev}"


def _next(number: int | None) -> int:
    return (number or 0) + 1
