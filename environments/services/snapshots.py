"""Snapshots: the disk of an Environment copied into its next version, or found to be the latest one already.

* :func:`request` refuses in a fixed order, takes the lease and wakes a pod that is stopped, in one commit.
* :func:`finish` is the last commit, small however large the disk is: fence, version, lease and result together.
* A snapshot before a suspend carries the wish in its ``input`` and the row's ``suspend_after``; whichever way it ends,
  the suspend follows, unless a start took the wish back.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from environments import lifecycle
from environments.errors import (
    BUSY_RETRY,
    EnvironmentBusy,
    EnvironmentLost,
    OperationInterrupted,
    call_runs,
    lease_held,
)
from environments.models import Environment, Operation
from environments.services import dispatch, endings, leases, operations, versions
from environments.services.available import PodsAvailable
from environments.services.operations import Attempt
from environments.services.readiness import ready, setup_pending
from environments.services.rows import Facts, facts_of, hold_live, later
from environments.services.start import wake_row
from environments.services.versions import Copied
from manifests.services import content
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import RequestRejected
from nylorun.tenant.store import hold_artifact_quota


def request(environment_id: str, *, actor: str, pods: PodsAvailable) -> str:
    """Ask for a snapshot; the Operation's id."""

    def work(tx: Tx) -> str:
        row = hold_live(tx, environment_id)
        holder = leases.hold_holder(tx, row)
        facts = facts_of(row, tx)
        refuse(row, facts, pods)
        operation = begin(tx, row, facts, holder, actor=actor)
        use(tx, row, facts)
        return operation.id

    return transact(work)


def refuse(row: Environment, facts: Facts, pods: PodsAvailable) -> None:
    """The refusals of a snapshot and of a fork of ``latest``, in their order."""
    if row.kind == "none":
        raise RequestRejected(f"Environment {row.id} is of kind none: it has no disk to copy.")
    if row.kind == "pod":
        pods.require(row.id)
    if row.observed == "lost":
        raise EnvironmentLost(row.id, row.reason)
    if facts.busy:
        raise call_runs(row.id)
    if lifecycle.lease(row, facts.now) is not None:
        raise lease_held(row.id)
    if row.disk_seed is not None or setup_pending(row):
        raise EnvironmentBusy(
            f"The disk of Environment {row.id} is still being filled or set up.", retry_after=BUSY_RETRY
        )


def begin(
    tx: Tx,
    row: Environment,
    facts: Facts,
    holder: Operation | None,
    *,
    actor: str,
    kind: Literal["snapshot", "fork"] = "snapshot",
    input: dict[str, Any] | None = None,
) -> Operation:
    """Take the free lease for a new Operation; the caller refused what is in the way."""
    if holder is not None and holder.state in ("queued", "running"):
        endings.fail(tx, row, holder, OperationInterrupted(holder.id), facts.now)
    operation = dispatch.queue(tx, row, kind, facts.now, actor=actor, input=input)
    leases.take(row, operation, "snapshot", facts.now)
    return operation


def use(tx: Tx, row: Environment, facts: Facts) -> None:
    """A copy that was asked for is a use, and wakes a pod that is stopped or failed."""
    if row.kind == "pod":
        wake_row(tx, row, facts)
    else:
        row.write(last_used_at=later(row.last_used_at, facts.now))


# --------------------------------------------------------------------------------------------------- before a suspend


def applies(row: Environment) -> bool:
    """Whether a stop or idle suspend of this pod is to be preceded by a snapshot."""
    asked = row.applied.get("lifecycle", {}).get("snapshot") == "suspend"
    return asked and row.kind == "pod" and ready(row)


def before_suspend(
    tx: Tx, row: Environment, facts: Facts, reason: Literal["stop", "idle"], holder: Operation | None = None
) -> Operation:
    """Begin the copy that ends in the suspend; the pod keeps running until then."""
    row.write(suspend_after=reason, updated_at=later(row.updated_at, facts.now))
    return begin(tx, row, facts, holder, actor="system", input={"suspend": reason})


# ----------------------------------------------------------------------------------------------------------- last step


def finish(attempt: Attempt, tree: Copied) -> bool:
    """Make the version, or find that the disk is unchanged; false when the fence moved."""

    def work(tx: Tx, row: Environment, operation: Operation) -> None:
        hold_artifact_quota(tx)  # which also keeps the removal of content rows away until the version names them
        artifact = versions.hold_disk(tx, row.uid)
        now = tx.now()
        if operation.cancel_requested:
            endings.cancel(tx, row, operation, now)
            return
        cause = "suspend" if operation.input.get("suspend") else "request"
        kept, released = versions.keep(row, artifact, tree, cause=cause, operation=operation, now=now)
        content.release(tx, released)
        note_use(row, now, asked=cause == "request")
        operations.succeed(row, operation, present_kept(kept), now, status=201 if kept.created else 200)
        endings.suspend_as_asked(tx, row, operation, {"version": kept.number, "created": kept.created}, now)

    return operations.write_back(attempt, work)


def note_use(row: Environment, now: datetime, *, asked: bool) -> None:
    """A copy somebody asked for is a use; a virtual workspace that was copied has been made."""
    patch: dict[str, Any] = {"updated_at": later(row.updated_at, now)}
    if asked:
        patch["last_used_at"] = later(row.last_used_at, now)
    if row.kind == "virtual":
        patch["workspace_at"] = row.workspace_at or now
    row.write(**patch)


def present_kept(kept: versions.Kept) -> dict[str, Any]:
    """What a snapshot answers."""
    return {
        "version": kept.number,
        "created": kept.created,
        "artifactId": kept.artifact_id,
        "size": kept.size,
        "fileCount": kept.files,
    }
