"""Operation ``setup``: input files and commands on a new disk, or on a copied one that asked for them.

Needed when the applied Recipe has ``files`` or ``setup``, this volume has not seen them, and no Disk version is still
to be written. Each write-back is one commit under the attempt's fence.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from environments.errors import SetupFailed
from environments.models import Environment, Operation
from environments.services import dispatch, endings, operations
from environments.services.operations import Attempt
from environments.services.readiness import setup_pending
from environments.services.rows import later
from nylorun.db.tx import Tx

OUTPUT_TAIL = 2048


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A setup command ended without success; files count as command 0. ``output`` is its tail."""

    command: int
    exit_code: int
    output: str


def queue_if_needed(tx: Tx, row: Environment, now: datetime, *, hand_out: bool) -> None:
    """Insert Operation ``setup`` when this disk needs one and none is unfinished. The caller holds the row."""
    seed = row.disk_seed
    waits = seed is None or (seed.get("setup") and seed.get("written"))
    if waits and setup_pending(row) and not dispatch.unfinished(row, "setup"):
        dispatch.queue(tx, row, "setup", now, hand_out=hand_out)


def succeed(attempt: Attempt) -> bool:
    """Setup is done on this volume; false when the fence moved."""

    def work(tx: Tx, row: Environment, operation: Operation) -> None:
        now = tx.now()
        operations.succeed(row, operation, {}, now)
        row.write(setup_done_gen=row.volume_gen, disk_seed=None, updated_at=later(row.updated_at, now))

    return operations.write_back(attempt, work)


def fail(attempt: Attempt, failure: CommandFailed) -> bool:
    """A command failed: the pod is failed and holds no machine; the next start begins from the first command again."""

    def work(tx: Tx, row: Environment, operation: Operation) -> None:
        known: dict[str, Any] = {"command": failure.command, "exitCode": failure.exit_code}
        operation.data = {**operation.data, "setup": {**known, "output": failure.output[-OUTPUT_TAIL:]}}
        error = SetupFailed(f"command {failure.command} exited {failure.exit_code}", details=known)
        endings.fail(tx, row, operation, error, tx.now())

    return operations.write_back(attempt, work)
