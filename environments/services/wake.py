"""Wake: asks a stopped or failed pod to run, with the start check's refusals and its writes."""

from __future__ import annotations

from typing import Any

from environments.models import Environment
from environments.services.available import PodsAvailable
from environments.services.present import present
from environments.services.read import live_row
from environments.services.rows import facts_of
from environments.services.start import check_start
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import NotFound


def wake_environment(environment_id: str, *, owner: str | None, pods: PodsAvailable) -> tuple[dict[str, Any], bool]:
    """Ask for the wake; the view, and whether there is nothing to wait for."""

    def work(tx: Tx) -> tuple[dict[str, Any], bool]:
        row, facts = check_start(tx, environment_id, owner=owner, pods=pods, missing=NotFound)
        return present(row, facts), _settled(row)

    return transact(work)


def look(environment_id: str) -> tuple[dict[str, Any], bool]:
    """One look of a waiting request, without a lock."""
    row = live_row(environment_id)
    return present(row, facts_of(row)), _settled(row)


def _settled(row: Environment) -> bool:
    """Whether waiting longer changes nothing: it runs, it cannot, or nobody wants it to run any more."""
    return row.kind != "pod" or row.observed in ("running", "failed", "lost") or row.desired != "running"
