"""Delete: gone for every caller at once, in every state, with no worker, Driver or broker up.

* Asked, it refuses while a call runs or a snapshot or restore holds the disk; ``force`` ends what is in the way in the
  same commit: running calls settle as interrupted, leases are cleared, Operations cancelled.
* The sweep of unused Environments is exactly this delete, with its reason.
* Locks: Environment row, ``environments.create``, its Operations, Effects, stream head, outbox row.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from environments import lifecycle
from environments.models import Effect, Environment, Operation
from environments.services.rows import (
    Facts,
    apply_change,
    facts_of,
    hold_row,
    refuse_while_used,
)
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact
from nylorun.record import events, outbox
from nylorun.tenant.store import change_environment_count, hold_environment_count
from vault.services.vaults import remove_vault


def delete_environment(environment_id: str, *, force: bool) -> bool:
    """Delete the Environment; false when it is missing or already being deleted."""

    def work(tx: Tx) -> bool:
        row = hold_row(tx, environment_id, to_delete=True)
        if row is None or not row.live:
            return False
        hold_environment_count(tx)
        cancel_operations(tx, row)
        facts = facts_of(row, tx)
        if not force:
            refuse_while_used(row, facts)
        erase(tx, row, facts, payload={})
        return True

    return transact(work)


def cancel_operations(tx: Tx, row: Environment) -> list[Operation]:
    """Lock the unfinished Operations of a row, by id, so that the caller may end them."""
    held = []
    for id in Operation.objects.unfinished(row.id).order_by("pk").values_list("pk", flat=True):
        operation = tx.hold(Rank.OPERATION, Operation.objects.filter(pk=id), id)
        if operation is not None:
            held.append(operation)
    return held


def erase(tx: Tx, row: Environment, facts: Facts, *, payload: dict[str, Any]) -> None:
    """The one way an Environment goes. The caller holds its row, the create lock and its Operations."""
    events.append(tx, row.id, row.noun, "deleted", payload)
    end_operations(row, facts.now)
    tx.take(Rank.EFFECT, str(row.uid))
    Effect.objects.filter(uid=row.uid).delete()
    change_environment_count(-1)
    if row.kind == "pod":
        remove_vault(row.uid)
        apply_change(tx, row, lifecycle.delete(row), updated_at=facts.now)
        return
    if row.kind == "virtual":
        outbox.post(tx, "workspace.remove", str(row.uid), {"uid": str(row.uid)})
    row.delete()


def end_operations(row: Environment, now: datetime) -> None:
    """Cancel what is unfinished; a worker that still runs one finds its fence moved and writes nothing."""
    Operation.objects.unfinished(row.id).update(
        state="cancelled", lease_until=None, due_at=None, finished_at=now, cancel_requested=True
    )
