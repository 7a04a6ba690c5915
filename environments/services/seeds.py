"""Disk seeds: a new disk is filled from a Disk version before its first call.

The column ``disk_seed`` names the version and stays until it is written (and, when the copied disk asked for setup,
until setup is done). The Operations ``seed``, ``restore`` and ``recover`` fill it; every attempt copies from the
beginning. One that ended without success is followed by a new ``seed`` at the next start. Locks: Environment row,
Operation.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from environments.models import Environment, Operation
from environments.services import dispatch, endings, leases, operations, setups, versions
from environments.services.operations import Attempt
from environments.services.present import present
from environments.services.rows import facts_of, later
from nylorun.db.tx import Tx
from nylorun.record import events


def queue_if_needed(tx: Tx, row: Environment, now: datetime, *, hand_out: bool) -> None:
    """Make a ``seed`` Operation when a version waits to be written and nobody is about to. The caller holds the row."""
    seed = row.disk_seed
    if seed is None or seed.get("written") or dispatch.unfinished(row, *endings.FILLS):
        return
    dispatch.queue(tx, row, "seed", now, data=named_by(seed), hand_out=hand_out)


def named_by(seed: dict[str, Any]) -> dict[str, Any]:
    """What an Operation's ``data`` holds of a seed: the version it keeps from being removed."""
    return {"artifactId": seed["artifactId"], "version": seed["version"]}


def key_of(seed: dict[str, Any] | None) -> str | None:
    """The key of the kept disk that a new volume may start from; ``None`` when nothing waits to be written."""
    if seed is None or seed.get("written"):
        return None
    return versions.holder_of(seed["artifactId"], seed["version"])


def written(attempt: Attempt) -> bool:
    """Whether an earlier attempt wrote the version already, so that only setup is left; read without a lock."""
    seed = Environment.objects.filter(uid=attempt.uid).values_list("disk_seed", flat=True).first()
    return bool(seed and seed.get("written"))


def finish(attempt: Attempt) -> bool:
    """The version is on the disk: one commit clears the seed (or hands over to setup); false when the fence moved."""

    def work(tx: Tx, row: Environment, operation: Operation) -> None:
        facts = facts_of(row, tx)
        seed = row.disk_seed or {}
        patch: dict[str, Any] = {"updated_at": later(row.updated_at, facts.now)}
        if seed.get("setup"):
            patch["disk_seed"] = {**seed, "written": True}
        else:
            patch.update(disk_seed=None, setup_done_gen=row.volume_gen)
        if row.kind == "virtual":
            patch["workspace_at"] = row.workspace_at or facts.now
        row.write(**patch)
        leases.release(row, operation)
        if row.kind == "virtual" and attempt.kind == "restore":
            payload = {"reason": "restore", "version": operation.data["version"]}
            events.append(tx, row.id, row.noun, "reset", payload)
        result = present(row, facts) if attempt.kind == "restore" else {"version": operation.data["version"]}
        operations.succeed(row, operation, result, facts.now)
        setups.queue_if_needed(tx, row, facts.now, hand_out=True)

    return operations.write_back(attempt, work)
