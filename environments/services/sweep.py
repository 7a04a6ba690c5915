"""What the schedules pick and mark, in bounded batches, every row looked at again under its lock.

Reads are not use. Nothing here trusts a list that was read without a lock: it only says where to look. Unused
Environments go fifty in a commit, whose locks are taken by ascending id; a batch that fails is tried row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, Q

from environments import lifecycle
from environments.commands import UNSET, Unset
from environments.models import Effect, Environment
from environments.services.delete import erase, hold_operations
from environments.services.rows import ask_reconcile, hold_row
from environments.services.versions import hold_disks
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, database_now, transact
from nylorun.tenant.store import hold_environment_count

BATCH = 50
UNUSED = UNSET
BUSY_AGAIN = timedelta(seconds=60)
ENGINE_STALE = timedelta(minutes=6)


def idle_candidates(limit: int = 1000) -> list[str]:
    """Pods whose idle timer ran out, by that time: their reconcile with trigger ``idle`` decides."""
    now = database_now()
    rows = Environment.objects.filter(desired="running", observed__in=("creating", "running"), idle_at__lte=now)
    return list(rows.order_by("idle_at").values_list("pk", flat=True)[:limit])


def unused_candidates(limit: int = BATCH) -> list[str]:
    """Environments whose ``deleteAfter`` is due for a look, oldest first."""
    rows = Environment.objects.live().filter(delete_check_at__lte=database_now())
    return list(rows.order_by("delete_check_at").values_list("pk", flat=True)[:limit])


def delete_unused(environment_ids: Sequence[str]) -> int:
    """Delete those of these Environments that are unused under their locks, in one commit; returns how many.

    For the others the row notes when to look again: a use moved the time on, or a call or copy is in the way.
    """

    def work(tx: Tx) -> int:
        rows = tx.hold_all(Rank.ENVIRONMENT, Environment.objects.live().filter(pk__in=environment_ids), to_delete=True)
        hold_environment_count(tx)
        hold_operations(tx, rows)
        disks = hold_disks(tx, rows)
        now = tx.now()
        busy = set(Effect.objects.busy_among([row.uid for row in rows], now))
        unused = []
        for row in rows:
            again = _look_again(row, now, busy=row.uid in busy)
            if again is UNUSED:
                unused.append(row)
            else:
                row.write(delete_check_at=again)
        erase(tx, unused, disks, now, payload={"reason": "unused"})
        return len(unused)

    return transact(work)


def _look_again(row: Environment, now: datetime, *, busy: bool) -> datetime | Unset | None:
    """When the sweep looks at this row again; ``UNUSED``: now is the time, ``None``: never."""
    after = lifecycle.delete_after(row.recipe)
    if after is None:
        return None
    due = row.last_used_at + after
    if due > now:
        return due
    return now + BUSY_AGAIN if busy or lifecycle.refusing_lease(row, now) else UNUSED


def stale_pods(stale: timedelta, limit: int = 1000) -> list[str]:
    """Pods that change and have not moved for ``stale``: a lost message costs them no more than that."""
    before = database_now() - stale
    moving = (
        Q(desired="deleted")
        | Q(retiring__isnull=False)
        | Q(observed="creating")
        | (Q(desired="suspended") & ~Q(observed__in=("suspended", "lost")))
    )
    rows = Environment.objects.filter(moving, kind="pod", updated_at__lte=before)
    return list(rows.order_by("updated_at").values_list("pk", flat=True)[:limit])


@dataclass(frozen=True, slots=True)
class QuietEngine:
    """A running pod whose Engine missed its renewal."""

    environment_id: str
    address: str
    epoch: int


def quiet_engines(limit: int = 500) -> list[QuietEngine]:
    """Running pods whose Engine was not seen for six minutes; a quiet fleet that renews costs nothing."""
    before = database_now() - ENGINE_STALE
    quiet = Environment.objects.filter(
        desired="running", observed="running", engine_seen_at__lte=before, engine_address__isnull=False
    )
    found = quiet.values_list("pk", "engine_address", "host_epoch")[:limit]
    return [QuietEngine(id, str(address), epoch or 0) for id, address, epoch in found]


def ask_for_look(environment_id: str) -> None:
    """Promise a reconcile for one row, in a transaction of its own."""

    def work(tx: Tx) -> None:
        if hold_row(tx, environment_id) is not None:
            ask_reconcile(tx, environment_id)

    transact(work)


def engine_answered(environment_id: str, epoch: int) -> None:
    """A ping of a quiet Engine was answered."""
    now = database_now()
    Environment.objects.named(environment_id).filter(host_epoch=epoch).update(engine_seen_at=now)


def known_pod_names() -> set[str]:
    """Every Sandbox object's name a row holds, as its current or its retiring one."""
    names: set[str] = set()
    for current, retiring in Environment.objects.filter(kind="pod").values_list("k8s_name", "retiring"):
        names.update(name for name in (current, retiring) if name)
    return names


def unknown_workspaces(uids: Iterable[UUID]) -> list[UUID]:
    """Of these workspaces, those whose row does not exist."""
    asked = set(uids)
    return sorted(asked - set(Environment.objects.filter(uid__in=asked).values_list("uid", flat=True)))


def census() -> dict[tuple[str, str], int]:
    """How many Environments there are by kind and state, for metrics."""
    rows = Environment.objects.values_list("kind", "observed").annotate(number=Count("pk")).order_by()
    return {(kind, observed or "ready"): number for kind, observed, number in rows}


def oldest_deletion(now: datetime) -> float:
    """Age in seconds of the oldest deletion whose machine is still going; 0 without one."""
    oldest = (
        Environment.objects.filter(desired="deleted").order_by("updated_at").values_list("updated_at", flat=True)
    ).first()
    return 0.0 if oldest is None else (now - oldest).total_seconds()
