"""Stop: suspend the pod and keep its volume; the next start wakes it. Already suspended or lost: nothing changes.

Where the Recipe asks for it (``lifecycle.snapshot: suspend``) a running pod's disk is copied first, and the suspend
follows the copy however that ends.
"""

from __future__ import annotations

from typing import Any

from environments import lifecycle
from environments.errors import OperationInterrupted
from environments.models import Environment
from environments.services import endings, leases, snapshots
from environments.services.present import present
from environments.services.rows import Facts, apply_change, facts_of, hold_live, later, refuse_while_used
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import RequestRejected


def stop_environment(environment_id: str) -> tuple[dict[str, Any], str | None]:
    """Ask for the suspend: the view, and the Operation that copies the disk first, if one does."""

    def work(tx: Tx) -> tuple[dict[str, Any], str | None]:
        row = hold_live(tx, environment_id)
        if row.kind != "pod":
            raise RequestRejected(f"Environment {row.id} is of kind {row.kind}: only a pod can be stopped.")
        holder = leases.hold_holder(tx, row)
        facts = facts_of(row, tx)
        refuse_while_used(row, facts)
        if row.suspend_after is not None and holder is not None and holder.state in ("queued", "running"):
            endings.fail(tx, row, holder, OperationInterrupted(holder.id), facts.now)  # which suspends, as it was asked
        row.write(last_used_at=later(row.last_used_at, facts.now))
        if snapshots.applies(row):
            operation = snapshots.before_suspend(tx, row, facts, "stop", holder)
            return present(row, facts), operation.id
        _suspend(tx, row, facts)
        return present(row, facts), None

    return transact(work)


def _suspend(tx: Tx, row: Environment, facts: Facts) -> None:
    change = lifecycle.suspend(row, "stop")
    if not change.nothing:
        apply_change(tx, row, change, updated_at=later(row.updated_at, facts.now))
