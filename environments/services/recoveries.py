"""Recovery of a lost pod whose Recipe asks for it (``lifecycle.onLost: restore``), from its newest Disk version.

The commit that writes ``lost`` also inserts Operation ``recover``, at most ``MOST`` in an hour. It waits while a call
runs or the disk is held, then makes the new volume (:func:`advance`), and copies as every other seed does. Failed or
cancelled before that, the Environment stays lost.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from environments import lifecycle
from environments.errors import DiskVersionNotFound
from environments.models import Environment, Operation
from environments.services import dispatch, endings, operations, versions
from environments.services.delete import end_operations
from environments.services.rows import Facts, apply_change, facts_of, hold_row, later
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact

MOST = 3
WITHIN = timedelta(hours=1)


def queue_if_asked(tx: Tx, row: Environment, now: datetime) -> None:
    """Insert Operation ``recover`` when the row, which the caller holds and just lost, is to be recovered."""
    asked = row.applied.get("lifecycle", {}).get("onLost") == "restore"
    if not asked or row.disk_latest is None or dispatch.unfinished(row, "recover"):
        return
    recent = Operation.objects.filter(
        environment_id=row.id, uid=row.uid, kind="recover", created_at__gt=now - WITHIN
    ).count()
    if recent < MOST:
        dispatch.queue(tx, row, "recover", now)


def advance(operation_id: str, *, tenant: str) -> None:
    """Make the new volume of a recovery whose time has come; the pod's join hands the copy out."""
    named = Operation.objects.filter(pk=operation_id).values_list("environment_id", flat=True).first()

    def work(tx: Tx) -> None:
        row = hold_row(tx, named or "")
        if row is None or not row.live:
            return
        unfinished = tx.hold_all(Rank.OPERATION, Operation.objects.unfinished([row.id]))
        operation = next((one for one in unfinished if one.id == operation_id), None)
        versions.hold_disk(tx, row.uid)
        facts = facts_of(row, tx)
        if operation is not None and operation.uid == row.uid and "volume" not in operation.data:
            _decide(tx, row, operation, facts, tenant)

    transact(work)


def _decide(tx: Tx, row: Environment, operation: Operation, facts: Facts, tenant: str) -> None:
    if operation.cancel_requested:
        endings.cancel(tx, row, operation, facts.now)
    elif row.observed != "lost":
        operations.succeed(row, operation, {}, facts.now)
    elif facts.busy or row.retiring is not None or lifecycle.lease(row, facts.now) is not None:
        operation.due_at = facts.now + operations.AGAIN
        operation.save(update_fields=["due_at"])
        dispatch.post(tx, operation.id, operation.kind, operations.AGAIN.total_seconds())
    else:
        _new_volume(tx, row, operation, facts, tenant)


def _new_volume(tx: Tx, row: Environment, operation: Operation, facts: Facts, tenant: str) -> None:
    artifact = versions.disk_by_uid(row.uid)
    if artifact is None or artifact.latest_version is None:
        endings.fail(tx, row, operation, DiskVersionNotFound(row.id, "latest"), facts.now)
        return
    end_operations([row], facts.now, kinds=operations.ON_NEW_DISKS, but=operation.id)
    seed = {"artifactId": artifact.id, "version": artifact.latest_version}
    change = lifecycle.new_volume(
        row, tenant=tenant, now=facts.now, idle=facts.idle(row.recipe), seed=seed, reason="lost"
    )
    apply_change(tx, row, change, disk_op=None, updated_at=later(row.updated_at, facts.now))
    operation.data = {**operation.data, **seed, "volume": row.volume_gen}
    operation.save(update_fields=["data"])
