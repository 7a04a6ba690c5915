"""Stop: suspend the pod and keep its volume; the next start wakes it. Already suspended or lost: nothing changes."""

from __future__ import annotations

from typing import Any

from environments import lifecycle
from environments.services.present import present
from environments.services.rows import apply_change, facts_of, hold_live, later, refuse_while_used
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import RequestRejected


def stop_environment(environment_id: str) -> dict[str, Any]:
    """Ask for the suspend and answer the view; the event is written with the request."""

    def work(tx: Tx) -> dict[str, Any]:
        row = hold_live(tx, environment_id)
        if row.kind != "pod":
            raise RequestRejected(f"Environment {row.id} is of kind {row.kind}: only a pod can be stopped.")
        facts = facts_of(row, tx)
        refuse_while_used(row, facts)
        change = lifecycle.suspend(row, "stop")
        used = later(row.last_used_at, facts.now)
        if change.nothing:
            row.write(last_used_at=used)
        else:
            apply_change(tx, row, change, last_used_at=used, updated_at=later(row.updated_at, facts.now))
        return present(row, facts)

    return transact(work)
