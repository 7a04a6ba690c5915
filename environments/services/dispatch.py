"""Operations before and after they run: making them, handing them out, removing them when they are old.

The drain, a join and the sweep hand out; whatever is handed out twice begins once. Setup has a topic of its own: it may
take hours, so an installation can serve it with workers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from environments.models import Environment, Operation
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact
from nylorun.kernel.ids import ulid
from nylorun.record import outbox

RUN, SETUP = "operation.run", "operation.setup"
KEEP = timedelta(days=30)


def queue(
    tx: Tx,
    row: Environment,
    kind: str,
    now: datetime,
    *,
    actor: str = "system",
    input: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    hand_out: bool = True,
) -> Operation:
    """Insert an Operation of this row, whose lock the caller holds; ``hand_out`` false: a join or the sweep does."""
    operation = Operation(
        id=ulid("op", now), kind=kind, environment_id=row.id, uid=row.uid, actor=actor,
        input=dict(input or {}), data=dict(data or {}), created_at=now, due_at=now,
    )  # fmt: skip
    operation.save(force_insert=True)
    if hand_out:
        post(tx, operation.id, kind)
    return operation


def kind_of(operation_id: str) -> str:
    """Its kind; empty when it is gone."""
    return Operation.objects.filter(pk=operation_id).values_list("kind", flat=True).first() or ""


def topic_of(kind: str) -> str:
    """The topic that runs Operations of this kind."""
    return SETUP if kind == "setup" else RUN


def post(tx: Tx, operation_id: str, kind: str, delay: float = 0.0) -> None:
    """Promise a run of this Operation."""
    outbox.post(tx, topic_of(kind), operation_id, {"operationId": operation_id}, delay=delay)


def unfinished(row: Environment, *kinds: str) -> bool:
    """Whether an Operation of one of these kinds waits or runs on this row."""
    return Operation.objects.unfinished([row.id]).filter(uid=row.uid, kind__in=kinds).exists()


def run_waiting(tx: Tx, row: Environment) -> None:
    """Hand out what waited for this pod's Engine; the caller holds the row."""
    for id, kind in Operation.objects.unfinished([row.id]).filter(uid=row.uid).order_by("pk").values_list("pk", "kind"):
        post(tx, id, kind)


def hand_out(operation_id: str) -> None:
    """Promise a run of this Operation now, whatever its time; nothing for one that ended."""

    def work(tx: Tx) -> None:
        kind = Operation.objects.filter(pk=operation_id, state="queued").values_list("kind", flat=True).first()
        if kind is not None:
            post(tx, operation_id, kind)

    transact(work)


def take_over(worker: str) -> int:
    """End the leases of what the process of this name, which is gone, had in hand, and hand it out; returns how many.

    Nobody else may bear the name: the caller does now. Without this a killed worker's leases would have to lapse.
    """

    def work(tx: Tx) -> int:
        left = Operation.objects.filter(state="running", data__worker=worker)
        found = tx.hold_all(Rank.OPERATION, left)
        now = tx.now()
        for operation in found:
            operation.lease_until = now
            operation.save(update_fields=["lease_until"])
            post(tx, operation.id, operation.kind)
        return len(found)

    return transact(work) if worker else 0


def hand_out_due(limit: int = 100) -> int:
    """Post an outbox row for every lapsed or due Operation; returns how many. For the sweep."""

    def work(tx: Tx) -> int:
        now = tx.now()
        due = Operation.objects.lapsed(now - timedelta(seconds=1)).order_by("due_at").values_list("pk", "kind")
        found = sorted(due[:limit])
        for id, kind in found:
            post(tx, id, kind)
        return len(found)

    return transact(work)


def remove_ended(limit: int = 1000) -> int:
    """Remove Operations that ended ``KEEP`` ago; returns how many."""

    def work(tx: Tx) -> int:
        old = Operation.objects.filter(finished_at__lte=tx.now() - KEEP).order_by("finished_at")
        return Operation.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()[0]

    return transact(work)
