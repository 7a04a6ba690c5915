"""What an Operation that ends without success leaves on its Environment: one rule for each kind.

The caller holds the Environment row and the Operation, in this order, and has read ``now``. The lease goes with the
Operation; what it was to bring about stays possible: a disk seed stays, and the next start asks for it again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from environments import lifecycle
from environments.models import Environment, Operation
from environments.services import leases
from environments.services.rows import apply_change, later
from manifests.services import content
from nylorun.db.tx import Tx
from nylorun.kernel.errors import ApiError

FILLS = ("seed", "restore", "recover")
"""Kinds that fill a new disk from a Disk version."""
COPIES = ("snapshot", "fork")
"""Kinds that claim content, for the Disk version they make."""


def fail(tx: Tx, row: Environment, operation: Operation, error: ApiError, now: datetime) -> None:
    """Its final failure."""
    operation.error = {"code": error.code, "message": error.message, "details": error.details}
    operation.http_status = error.status
    _leave(tx, row, operation, now, error.code, error.message)
    close(operation, "failed", now)


def cancel(tx: Tx, row: Environment, operation: Operation, now: datetime) -> None:
    """It was cancelled by its caller or an operator."""
    _leave(tx, row, operation, now, "operation_cancelled", "")
    close(operation, "cancelled", now)


def close(operation: Operation, state: str, now: datetime) -> None:
    """An ended row never changes again."""
    operation.state, operation.lease_until, operation.due_at, operation.finished_at = state, None, None, now
    operation.save(
        update_fields=[
            "state", "lease_until", "due_at", "finished_at", "error", "result", "http_status", "data", "progress",
        ]
    )  # fmt: skip


def _leave(tx: Tx, row: Environment, operation: Operation, now: datetime, code: str, message: str) -> None:
    leases.release(row, operation)
    if operation.kind in COPIES and "version" not in operation.data:
        content.release(tx, [operation.id])
    if operation.kind == "snapshot":
        suspend_as_asked(tx, row, operation, {"failed": code}, now)
    elif operation.kind == "setup":
        setup = operation.data.get("setup")
        _fail_pod(tx, row, now, _reason("setup", code, message, setup), setup)
    elif operation.kind in FILLS and row.disk_seed is not None:
        _fail_pod(tx, row, now, _reason("seed", code, message), None)


def suspend_as_asked(tx: Tx, row: Environment, operation: Operation, snapshot: dict[str, Any], now: datetime) -> None:
    """The suspend that this snapshot was made before, however it ended; nothing when a start took the wish back."""
    reason = operation.input.get("suspend")
    if reason is None or row.suspend_after != reason:
        return
    change = lifecycle.suspend(row, reason, snapshot)
    apply_change(tx, row, change, suspend_after=None, updated_at=later(row.updated_at, now))


def _reason(what: str, code: str, message: str, setup: dict[str, Any] | None = None) -> str:
    if code == "operation_cancelled":
        return f"{what}_cancelled"
    output = (setup or {}).get("output")
    return f"{what}_failed: {message}\n{output}" if output else f"{what}_failed: {message}"


def _fail_pod(tx: Tx, row: Environment, now: datetime, reason: str, setup: dict[str, Any] | None) -> None:
    """A pod that is wanted and cannot be used holds no machine; one that is stopped stays so."""
    if row.kind != "pod" or row.desired != "running" or row.observed in ("failed", "lost"):
        return
    apply_change(tx, row, lifecycle.fail(row, reason, setup), updated_at=later(row.updated_at, now))
