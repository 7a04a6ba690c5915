"""Delete: gone for every caller at once, in every state, with no worker, Driver or broker up.

* Asked, it refuses while a call runs or a snapshot or restore holds the disk; ``force`` ends what is in the way in the
  same commit: running calls settle as interrupted, leases are cleared, Operations cancelled.
* The sweep of unused Environments is exactly this delete, with its reason.
* The disk artifact goes with its Environment, its content afterwards, in batches; so does what copies that still ran
  had claimed. A worker that claims more after that gives it back itself (:func:`versions.release_late`).
* Locks: Environment row, ``environments.create``, its Operations, disk artifact, Effects, stream head, outbox row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from environments import lifecycle
from environments.models import Effect, Environment, Operation
from environments.models.operation import KINDS
from environments.services import endings, versions
from environments.services.rows import (
    apply_change,
    facts_of,
    hold_row,
    refuse_while_used,
)
from manifests.models import Artifact
from manifests.services import content
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
        hold_operations(tx, [row])
        disks = versions.hold_disks(tx, [row])
        facts = facts_of(row, tx)
        if not force:
            refuse_while_used(row, facts)
        erase(tx, [row], disks, facts.now, payload={})
        return True

    return transact(work)


def hold_operations(tx: Tx, rows: Sequence[Environment]) -> None:
    """Lock the unfinished Operations of these rows, by id, so that the caller may end them."""
    tx.hold_all(Rank.OPERATION, Operation.objects.unfinished([row.id for row in rows]))


def end_operations(rows: Sequence[Environment], now: datetime, *, kinds: Sequence[str] = KINDS, but: str = "") -> None:
    """Cancel what is unfinished; a worker that still runs one finds its fence moved and writes nothing."""
    Operation.objects.unfinished([row.id for row in rows]).filter(kind__in=kinds).exclude(pk=but).update(
        state="cancelled", lease_until=None, due_at=None, finished_at=now, cancel_requested=True
    )


def erase(
    tx: Tx, rows: Sequence[Environment], disks: Sequence[Artifact], now: datetime, *, payload: dict[str, Any]
) -> None:
    """The one way Environments go. The caller holds their rows, the create lock, their Operations and disks."""
    for row in rows:
        events.append(tx, row.id, row.noun, "deleted", payload)
    copies = Operation.objects.unfinished([row.id for row in rows]).filter(kind__in=endings.COPIES)
    claimed = list(copies.order_by("pk").values_list("pk", flat=True))
    end_operations(rows, now)
    tx.take(Rank.EFFECT, "")
    Effect.objects.filter(uid__in=[row.uid for row in rows]).delete()
    change_environment_count(-len(rows))
    for row in rows:
        if row.kind == "pod":
            remove_vault(row.uid)
            apply_change(tx, row, lifecycle.delete(row), updated_at=now)
        elif row.kind == "virtual":
            outbox.post(tx, "workspace.remove", str(row.uid), {"uid": str(row.uid)})
    Environment.objects.filter(pk__in=[row.pk for row in rows if row.kind != "pod"]).delete()
    uids = {row.uid for row in rows}
    versions.release_disks(tx, [disk for disk in disks if disk.environment_uid in uids])
    content.release(tx, claimed)
