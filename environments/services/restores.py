"""Restore: the disk becomes a Disk version again. Files and setup do not run: the version holds their result.

* A pod gets a new volume with the version as its disk seed, in one commit; the old volume is retired, never
  overwritten. Calls are taken and wait for the copy.
* A virtual workspace is copied beside the present one and swapped for it; the lease refuses calls meanwhile.
"""

from __future__ import annotations

from environments import lifecycle
from environments.errors import DiskVersionNotFound, call_runs, lease_held, still_retiring
from environments.models import Environment
from environments.services import dispatch, leases, operations, versions
from environments.services.available import PodsAvailable
from environments.services.delete import end_operations, hold_operations
from environments.services.rows import Facts, apply_change, facts_of, hold_live, later
from manifests.models import Artifact
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import RequestRejected


def request(environment_id: str, number: int, *, actor: str, pods: PodsAvailable, tenant: str) -> str:
    """Ask for the restore; the Operation's id."""

    def work(tx: Tx) -> str:
        row = hold_live(tx, environment_id)
        hold_operations(tx, [row])
        artifact = versions.hold_disk(tx, row.uid)
        facts = facts_of(row, tx)
        _refuse(row, facts, pods)
        if artifact is None or versions.find(artifact, number) is None:
            raise DiskVersionNotFound(row.id, number)
        return _begin(tx, row, facts, artifact, number, actor, tenant)

    return transact(work)


def _refuse(row: Environment, facts: Facts, pods: PodsAvailable) -> None:
    if row.kind == "none":
        raise RequestRejected(f"Environment {row.id} is of kind none: it has no disk to restore.")
    if row.kind == "pod":
        pods.require(row.id)
    if facts.busy:
        raise call_runs(row.id)
    if lifecycle.lease(row, facts.now) is not None:
        raise lease_held(row.id)
    if row.retiring is not None:
        raise still_retiring(row.id)


def _begin(tx: Tx, row: Environment, facts: Facts, artifact: Artifact, number: int, actor: str, tenant: str) -> str:
    end_operations([row], facts.now, kinds=operations.ON_NEW_DISKS)
    data = {"artifactId": artifact.id, "version": number}
    used = later(row.last_used_at, facts.now)
    if row.kind == "virtual":
        operation = dispatch.queue(tx, row, "restore", facts.now, actor=actor, data=data)
        row.write(disk_seed=None, last_used_at=used)
        leases.take(row, operation, "restore", facts.now)
        return operation.id
    change = lifecycle.new_volume(
        row,
        tenant=tenant,
        now=facts.now,
        idle=facts.idle(row.recipe),
        seed=data,
        reason="lost" if row.observed == "lost" else "restore",
    )
    apply_change(tx, row, change, disk_op=None, updated_at=later(row.updated_at, facts.now))
    return dispatch.queue(tx, row, "restore", facts.now, actor=actor, data=data, hand_out=False).id
