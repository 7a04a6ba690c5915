"""Operations: long work as rows, run under a lease, fenced by their attempt.

* :func:`begin` takes the lease (and the disk's) and counts an attempt, or says that there is nothing to do: running
  work with a live lease is somebody else's.
* :func:`renew` and every :func:`write_back` require the attempt and the disk lease to be still the caller's own.
* A worker that died is followed by another one: the sweep hands lapsed and due rows out again; after ``ATTEMPTS``
  starts the Operation ends as its final failure does.
* What a kind leaves when it ends without success is in ``endings``; what it writes when it succeeds in its own file.
* Locks: Environment row, then Operations by id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from environments.errors import DiskCopyFailed, OperationInterrupted
from environments.models import Environment, Operation
from environments.services import endings, leases, variables
from environments.services.dispatch import post
from environments.services.leases import DISK_LEASE, LeaseKind
from environments.services.rows import Facts, facts_of, hold_row
from environments.services.variables import Noted
from environments.services.workplace import Workplace, workplace_of
from nylorun import config
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import ApiError
from nylorun.record.outbox import retry_delay

log = logging.getLogger(__name__)

ATTEMPTS = 5
AGAIN = timedelta(seconds=5)
ON_NEW_DISKS = (*endings.FILLS, "setup")
"""Kinds that work on a disk before its first call."""


class Standing(Enum):
    """What a running attempt is told when it renews."""

    OURS = "ours"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One started attempt and its fence. ``workplace`` is where its Engine was at the start, ``noted`` the variables
    that the commands of a setup take.
    """

    operation_id: str
    attempt: int
    kind: str
    environment_id: str
    uid: UUID
    actor: str
    input: Mapping[str, Any]
    data: Mapping[str, Any]
    lease: LeaseKind | None
    workplace: Workplace
    applied: Mapping[str, Any]
    noted: Noted | None = None

    @property
    def call(self) -> str:
        """The id of an Engine call of this attempt, to be followed by its step."""
        return f"{self.operation_id}.{self.attempt}"


# ------------------------------------------------------------------------------------------------------------- start


def begin(operation_id: str) -> Attempt | None:
    """Start an attempt, or ``None``: ended, somebody else's, waiting for its Engine, or out of attempts (ended
    here).
    """
    named = _environment_of(operation_id)
    if named is None:
        return None

    def work(tx: Tx) -> Attempt | None:
        row, operation, holder = _hold_all(tx, named, operation_id)
        facts = facts_of(row, tx)
        if operation is None or not _startable(operation, facts.now):
            return None
        if row is None or not row.live or row.uid != operation.uid:
            endings.close(operation, "cancelled", facts.now)
            return None
        if not _may_start(tx, row, operation, holder, facts):
            return None
        return _start(tx, row, operation, facts)

    return transact(work)


def _may_start(tx: Tx, row: Environment, operation: Operation, holder: Operation | None, facts: Facts) -> bool:
    if operation.cancel_requested:
        endings.cancel(tx, row, operation, facts.now)
        return False
    if operation.attempt >= ATTEMPTS + int(operation.data.get("excused", 0)):
        endings.fail(tx, row, operation, OperationInterrupted(operation.id), facts.now)
        return False
    if waits_for_engine(row, operation):
        _requeue(operation)
        return False
    kind = leases.lease_for(operation, row)
    return kind is None or _lease_is_free(tx, row, operation, kind, holder, facts)


def waits_for_engine(row: Environment, operation: Operation) -> bool:
    """Whether it can only begin once the pod's Engine has joined, which hands it out again."""
    return (
        row.kind == "pod"
        and operation.kind in ON_NEW_DISKS
        and (row.observed != "running" or row.engine_address is None)
    )


def _lease_is_free(
    tx: Tx, row: Environment, operation: Operation, kind: LeaseKind, holder: Operation | None, facts: Facts
) -> bool:
    """Whether this Operation may hold the disk now; a copy that lost its lease never starts under a call."""
    other = leases.held_by_another(row, operation.id, facts.now)
    ours = other is None and leases.held_by(row, operation.id) and leases_live(row, facts.now)
    if ours:
        return True
    if kind == "seed" and other is not None:
        _requeue(operation, facts.now + AGAIN)
        return False
    if kind != "seed" and (other is not None or facts.busy):
        endings.fail(tx, row, operation, OperationInterrupted(operation.id, "The disk was used meanwhile."), facts.now)
        return False
    if holder is not None and holder.state in ("queued", "running"):
        endings.fail(tx, row, holder, OperationInterrupted(holder.id), facts.now)
    return True


def leases_live(row: Environment, now: datetime) -> bool:
    """Whether the lease column holds a lease that has not lapsed."""
    return leases.held_by_another(row, "", now) is not None


def _start(tx: Tx, row: Environment, operation: Operation, facts: Facts) -> Attempt:
    operation.state = "running"
    operation.attempt += 1
    operation.started_at = operation.started_at or facts.now
    operation.lease_until = facts.now + DISK_LEASE
    operation.data = {**operation.data, "worker": config.current().worker}
    operation.save(update_fields=["state", "attempt", "started_at", "lease_until", "data"])
    kind = leases.lease_for(operation, row)
    if kind is not None:
        leases.take(row, operation, kind, facts.now)
    return Attempt(
        operation_id=operation.id,
        attempt=operation.attempt,
        kind=operation.kind,
        environment_id=row.id,
        uid=row.uid,
        actor=operation.actor,
        input=operation.input,
        data=operation.data,
        lease=kind,
        workplace=workplace_of(row, facts.settings.disk_bytes),
        applied=row.applied,
        noted=variables.note(tx, row, actor=operation.actor, now=facts.now) if operation.kind == "setup" else None,
    )


def _startable(operation: Operation, now: datetime) -> bool:
    lapsed = operation.state == "running" and operation.lease_until is not None and operation.lease_until <= now
    return operation.state == "queued" or lapsed


# ----------------------------------------------------------------------------------------------------- while it runs


def renew(attempt: Attempt, progress: Mapping[str, int] | None = None) -> Standing:
    """Keep both leases and note progress; anything but ``OURS`` tells the caller to stop and write nothing."""

    def work(tx: Tx) -> Standing:
        row, operation = _hold(tx, attempt)
        now = tx.now()
        if row is None or operation is None or not is_ours(row, operation, attempt):
            return Standing.LOST
        if operation.cancel_requested:
            return Standing.CANCELLED
        operation.lease_until = now + DISK_LEASE
        if progress is not None:
            operation.progress = dict(progress)
        operation.save(update_fields=["lease_until", "progress"])
        if leases.held_by(row, attempt.operation_id, attempt.attempt):
            leases.renew(row, now)
        return Standing.OURS

    return transact(work)


def has_moved(attempt: Attempt) -> bool:
    """Whether a renewal would say anything but ``OURS``: one look without a lock."""
    row = Operation.objects.filter(pk=attempt.operation_id, state="running", attempt=attempt.attempt)
    return row.values_list("cancel_requested", flat=True).first() is not False


def is_ours(row: Environment, operation: Operation, attempt: Attempt) -> bool:
    """The fence: this attempt still runs, on this very row, and nobody took its disk lease.

    A fork that has copied its source holds no lease any more, and needs none.
    """
    needs_lease = attempt.lease is not None and not (operation.kind == "fork" and "version" in operation.data)
    return (
        row.live
        and row.uid == attempt.uid
        and operation.state == "running"
        and operation.attempt == attempt.attempt
        and (not needs_lease or leases.held_by(row, attempt.operation_id, attempt.attempt))
    )


def write_back(attempt: Attempt, work: Callable[[Tx, Environment, Operation], None]) -> bool:
    """Run ``work`` with row and Operation locked, only while the fence holds; false when it moved."""

    def guarded(tx: Tx) -> bool:
        row, operation = _hold(tx, attempt)
        if row is None or operation is None or not is_ours(row, operation, attempt):
            return False
        work(tx, row, operation)
        return True

    return transact(guarded)


def succeed(
    row: Environment, operation: Operation, result: Mapping[str, Any], now: datetime, status: int = 200
) -> None:
    """Result and ``succeeded``, within the caller's last commit; the lease goes."""
    operation.result, operation.http_status = dict(result), status
    leases.release(row, operation)
    endings.close(operation, "succeeded", now)


def note(attempt: Attempt, **data: Any) -> bool:
    """Record what a step decided, so that a later attempt does not repeat it."""

    def work(tx: Tx, row: Environment, operation: Operation) -> None:
        operation.data = {**operation.data, **data}
        operation.save(update_fields=["data"])

    return write_back(attempt, work)


# --------------------------------------------------------------------------------------------------------------- end


def fail(attempt: Attempt, error: ApiError) -> bool:
    """A domain refusal: final at once."""
    return write_back(attempt, lambda tx, row, operation: endings.fail(tx, row, operation, error, tx.now()))


def end_cancelled(attempt: Attempt) -> bool:
    """The attempt saw that it was cancelled and undid what it had left."""
    return write_back(attempt, lambda tx, row, operation: endings.cancel(tx, row, operation, tx.now()))


def put_back(attempt: Attempt, reason: str, at_last: ApiError | None = None) -> bool:
    """Infrastructure did not answer: queued again with a growing delay; out of attempts, it fails with ``at_last``,
    or as the copy or setup that it is.

    A pod that was stopped meanwhile is no failure: the attempt is not counted, and its next join goes on.
    """

    log.warning("%s %s, attempt %d: %s", attempt.kind, attempt.operation_id, attempt.attempt, reason)

    def work(tx: Tx, row: Environment, operation: Operation) -> None:
        now = tx.now()
        if row.kind == "pod" and row.desired != "running":
            operation.data = {**operation.data, "excused": int(operation.data.get("excused", 0)) + 1}
        elif operation.attempt >= ATTEMPTS + int(operation.data.get("excused", 0)):
            usual = OperationInterrupted(operation.id) if operation.kind == "setup" else DiskCopyFailed(reason)
            endings.fail(tx, row, operation, at_last or usual, now)
            return
        if attempt.lease == "seed":
            leases.release(row, operation)
        elif attempt.lease is not None:
            leases.renew(row, now)
        delay = retry_delay(operation.attempt)
        _requeue(operation, now + delay)
        post(tx, operation.id, operation.kind, delay.total_seconds())

    return write_back(attempt, work)


def cancel(operation_id: str) -> bool:
    """Ask for the end of an Operation: queued work ends here, running work at its next step; false when it ended
    already.
    """
    named = _environment_of(operation_id)

    def work(tx: Tx) -> bool:
        row = hold_row(tx, named or "")
        operation = tx.hold(Rank.OPERATION, Operation.objects.filter(pk=operation_id), operation_id)
        now = tx.now()
        if operation is None or operation.state not in ("queued", "running"):
            return False
        if operation.state == "running":
            operation.cancel_requested = True
            operation.save(update_fields=["cancel_requested"])
        elif row is None or row.uid != operation.uid:
            endings.close(operation, "cancelled", now)
        else:
            endings.cancel(tx, row, operation, now)
        return True

    return transact(work)


# ------------------------------------------------------------------------------------------------------------- locks


def _environment_of(operation_id: str) -> str | None:
    return Operation.objects.filter(pk=operation_id).values_list("environment_id", flat=True).first()


def _hold(tx: Tx, attempt: Attempt) -> tuple[Environment | None, Operation | None]:
    row = hold_row(tx, attempt.environment_id)
    operation = tx.hold(Rank.OPERATION, Operation.objects.filter(pk=attempt.operation_id), attempt.operation_id)
    return row, operation


def _hold_all(
    tx: Tx, environment_id: str, operation_id: str
) -> tuple[Environment | None, Operation | None, Operation | None]:
    """The row, the Operation, and the other one that the lease column names, if there is one."""
    row = hold_row(tx, environment_id)
    lease = (row.disk_op if row is not None else None) or {}
    holder_id = str(lease.get("operationId", ""))
    found = tx.hold_all(Rank.OPERATION, Operation.objects.filter(pk__in={operation_id, holder_id}))
    held = {one.id: one for one in found}
    return row, held.get(operation_id), held.get(holder_id) if holder_id != operation_id else None


def _requeue(operation: Operation, due_at: datetime | None = None) -> None:
    operation.state, operation.lease_until = "queued", None
    if due_at is not None:
        operation.due_at = due_at
    operation.save(update_fields=["state", "lease_until", "due_at", "data"])
