"""Operations: long work as rows, run under a lease, fenced by their attempt.

* :func:`start` takes the lease (and the disk's) and counts an attempt, or says that there is nothing to do: running
  work with a live lease is somebody else's.
* :func:`renew` and every write-back require the attempt and the disk lease to be still the caller's own.
* A worker that died is followed by another one: the sweep hands lapsed and due rows out again; after ``ATTEMPTS``
  starts the Operation ends as its final failure does.
* Locks: Environment row, then Operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from environments import lifecycle
from environments.models import Environment, Operation
from environments.services.calls import Workplace, workplace_of
from environments.services.rows import apply_change, facts_of, hold_row, later
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact
from nylorun.kernel.clock import iso
from nylorun.kernel.ids import ulid
from nylorun.record import outbox
from nylorun.record.outbox import retry_delay

TOPIC = "operation.run"
ATTEMPTS = 5
LEASE = timedelta(minutes=2)
SEED_LEASE = timedelta(minutes=10)
OUTPUT_TAIL = 2048


@dataclass(frozen=True, slots=True)
class Setup:
    """One attempt of a setup: where it runs, what it writes and runs, and its fence."""

    operation_id: str
    attempt: int
    environment_id: str
    uid: UUID
    workplace: Workplace
    files: tuple[dict[str, Any], ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A setup command ended without success; files count as command 0. ``output`` is its tail."""

    command: int
    exit_code: int
    output: str


def queue_setup(tx: Tx, row: Environment, now: datetime) -> None:
    """Insert Operation ``setup`` unless one is unfinished; it runs before any call. The caller holds the row."""
    if Operation.objects.unfinished([row.id]).filter(kind="setup", uid=row.uid).exists():
        return
    operation = Operation(
        id=ulid("op", now), kind="setup", environment_id=row.id, uid=row.uid, actor="system", created_at=now, due_at=now
    )
    operation.save(force_insert=True)


def run_waiting(tx: Tx, row: Environment) -> None:
    """Hand out what waited for this pod's Engine; the caller holds the row."""
    for id in Operation.objects.unfinished([row.id]).filter(uid=row.uid).order_by("pk").values_list("pk", flat=True):
        outbox.post(tx, TOPIC, id, {"operationId": id})


def start(operation_id: str) -> Setup | None:
    """Begin an attempt, or ``None``: ended, somebody else's, waiting for its Engine, or out of attempts (ended
    here).
    """
    named = Operation.objects.filter(pk=operation_id).values_list("environment_id", flat=True).first()
    if named is None:
        return None

    def work(tx: Tx) -> Setup | None:
        row = hold_row(tx, named)
        operation = tx.hold(Rank.OPERATION, Operation.objects.filter(pk=operation_id), operation_id)
        facts = facts_of(row, tx)
        if operation is None or not _startable(operation, facts.now):
            return None
        if row is None or not row.live or row.uid != operation.uid:
            _end(operation, "cancelled", facts.now)
            return None
        if operation.attempt >= ATTEMPTS:
            _give_up(tx, row, operation, facts.now)
            return None
        if row.observed != "running" or row.engine_address is None:
            _requeue(operation)
            return None
        return _begin(row, operation, facts.now, facts.settings.disk_bytes)

    return transact(work)


def renew(setup: Setup) -> bool:
    """Keep the lease; false when it is not the caller's any more, who then stops and writes nothing."""

    def work(tx: Tx) -> bool:
        row, operation = _hold(tx, setup)
        now = tx.now()
        if row is None or operation is None or not _ours(row, operation, setup):
            return False
        operation.lease_until = now + LEASE
        operation.save(update_fields=["lease_until"])
        row.write(disk_op={**(row.disk_op or {}), "until": iso(now + LEASE)})
        return True

    return transact(work)


def succeed(setup: Setup) -> bool:
    """Setup is done on this volume: written once, under the fence; false when the fence moved."""

    def work(tx: Tx) -> bool:
        row, operation = _hold(tx, setup)
        now = tx.now()
        if row is None or operation is None or not _ours(row, operation, setup):
            return False
        operation.result = {}
        _end(operation, "succeeded", now)
        row.write(setup_done_gen=row.volume_gen, disk_op=None, updated_at=later(row.updated_at, now))
        return True

    return transact(work)


def fail_setup(setup: Setup, failure: CommandFailed) -> bool:
    """A command failed: the pod is failed and holds no machine; the next start begins from the first command again."""

    def work(tx: Tx) -> bool:
        row, operation = _hold(tx, setup)
        now = tx.now()
        if row is None or operation is None or not _ours(row, operation, setup):
            return False
        tail = failure.output[-OUTPUT_TAIL:]
        words = f"setup_failed: command {failure.command} exited {failure.exit_code}"
        operation.error = {
            "code": "setup_failed",
            "message": words,
            "details": {"command": failure.command, "exitCode": failure.exit_code},
        }
        _end(operation, "failed", now)
        change = lifecycle.fail(
            row,
            f"{words}\n{tail}" if tail else words,
            {"command": failure.command, "exitCode": failure.exit_code, "output": tail},
        )
        apply_change(tx, row, change, disk_op=None, updated_at=later(row.updated_at, now))
        return True

    return transact(work)


def put_back(setup: Setup) -> None:
    """Infrastructure did not answer: queued again with a growing delay; out of attempts, it fails."""

    def work(tx: Tx) -> None:
        row, operation = _hold(tx, setup)
        now = tx.now()
        if row is None or operation is None or not _ours(row, operation, setup):
            return
        row.write(disk_op=None)
        if operation.attempt >= ATTEMPTS:
            _give_up(tx, row, operation, now)
            return
        delay = retry_delay(operation.attempt)
        operation.due_at = now + delay
        _requeue(operation)
        outbox.post(tx, TOPIC, operation.id, {"operationId": operation.id}, delay=delay.total_seconds())

    transact(work)


def hand_out_due(limit: int = 100) -> int:
    """Post an outbox row for every lapsed or due Operation; returns how many. For the sweep."""

    def work(tx: Tx) -> int:
        now = tx.now()
        due = Operation.objects.lapsed(now - timedelta(seconds=1)).order_by("pk").values_list("pk", flat=True)[:limit]
        for id in due:
            outbox.post(tx, TOPIC, id, {"operationId": id})
        return len(due)

    return transact(work)


def _startable(operation: Operation, now: datetime) -> bool:
    lapsed = operation.state == "running" and operation.lease_until is not None and operation.lease_until <= now
    return operation.state == "queued" or lapsed


def _begin(row: Environment, operation: Operation, now: datetime, disk_bytes: int) -> Setup:
    operation.state = "running"
    operation.attempt += 1
    operation.started_at = operation.started_at or now
    operation.lease_until = now + LEASE
    operation.save(update_fields=["state", "attempt", "started_at", "lease_until"])
    row.write(
        disk_op={
            "kind": "seed",
            "operationId": operation.id,
            "attempt": operation.attempt,
            "startedAt": iso(now),
            "until": iso(now + SEED_LEASE),
        }
    )
    return Setup(
        operation.id,
        operation.attempt,
        row.id,
        row.uid,
        workplace_of(row, disk_bytes),
        tuple(row.applied.get("files", ())),
        tuple(row.applied.get("setup", ())),
    )


def _hold(tx: Tx, setup: Setup) -> tuple[Environment | None, Operation | None]:
    row = hold_row(tx, setup.environment_id)
    operation = tx.hold(Rank.OPERATION, Operation.objects.filter(pk=setup.operation_id), setup.operation_id)
    return row, operation


def _ours(row: Environment, operation: Operation, setup: Setup) -> bool:
    lease = row.disk_op or {}
    return (
        row.uid == setup.uid
        and operation.state == "running"
        and operation.attempt == setup.attempt
        and lease.get("operationId") == setup.operation_id
        and lease.get("attempt") == setup.attempt
    )


def _requeue(operation: Operation) -> None:
    operation.state, operation.lease_until = "queued", None
    operation.save(update_fields=["state", "lease_until", "due_at"])


def _end(operation: Operation, state: str, now: datetime) -> None:
    operation.state, operation.lease_until, operation.due_at, operation.finished_at = state, None, None, now
    operation.save(update_fields=["state", "lease_until", "due_at", "finished_at", "error", "result"])


def _give_up(tx: Tx, row: Environment, operation: Operation, now: datetime) -> None:
    operation.error = {"code": "operation_interrupted", "message": f"Setup was interrupted {ATTEMPTS} times."}
    _end(operation, "failed", now)
    change = lifecycle.fail(row, f"setup_failed: interrupted {ATTEMPTS} times")
    apply_change(tx, row, change, disk_op=None, updated_at=later(row.updated_at, now))
