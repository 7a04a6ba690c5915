"""Reset: a new pod on a new, empty volume; the old one is retired. The way out of ``lost`` and ``failed``."""

from __future__ import annotations

from typing import Any

from environments import lifecycle
from environments.errors import still_retiring
from environments.services.available import PodsAvailable
from environments.services.delete import end_operations, hold_operations
from environments.services.operations import ON_NEW_DISKS
from environments.services.present import present
from environments.services.rows import apply_change, facts_of, hold_live, later, refuse_while_used
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import RequestRejected


def reset_environment(environment_id: str, *, pods: PodsAvailable, tenant: str) -> dict[str, Any]:
    """Start over with an empty disk and answer the view; a pending copy or setup is cancelled."""

    def work(tx: Tx) -> dict[str, Any]:
        row = hold_live(tx, environment_id)
        if row.kind != "pod":
            raise RequestRejected(f"Environment {row.id} is of kind {row.kind}: only a pod can be reset.")
        hold_operations(tx, [row])
        facts = facts_of(row, tx)
        refuse_while_used(row, facts)
        if row.retiring is not None:
            raise still_retiring(row.id)
        pods.require(row.id)
        end_operations([row], facts.now, kinds=ON_NEW_DISKS)
        idle = facts.idle(row.recipe)
        change = lifecycle.new_volume(row, tenant=tenant, now=facts.now, idle=idle)
        apply_change(tx, row, change, disk_op=None, updated_at=later(row.updated_at, facts.now))
        return present(row, facts)

    return transact(work)
