"""The start check: what every Tool call outside a Session and every wake must pass, and what it writes.

Made under the Environment row's lock, held until the commit, so that a start and disk work never decide at the same
moment. In its order: gone, owner guard, kind, leases, pods available, recovering, lost, wake.

A start is the newer wish: it ends the snapshot that an idle suspend made first, and a suspend whose copy let its lease
lapse. A version that waits to be written and that nobody is writing gets a new ``seed``.
"""

from __future__ import annotations

from environments import lifecycle
from environments.errors import (
    BUSY_RETRY,
    EnvironmentBusy,
    EnvironmentLost,
    EnvironmentUnavailable,
    TenantResetting,
    lease_held,
)
from environments.models import Environment, Operation
from environments.services import dispatch, endings, leases, seeds
from environments.services.available import PodsAvailable
from environments.services.rows import Facts, apply_change, facts_of, hold_row, later
from nylorun.db.tx import Tx
from nylorun.kernel.errors import NotFound


def check_start(
    tx: Tx, environment_id: str, *, owner: str | None, pods: PodsAvailable, missing: type[NotFound] | None = None
) -> tuple[Environment, Facts]:
    """Lock the row, refuse or record the start: use is noted, and a stopped or failed pod is asked to run.

    ``owner`` is the person the call is for; a bare application key (``None``) passes the guard. ``missing`` is what a
    row that is not there raises, where it is not that the call cannot be served.
    """
    row = hold_row(tx, environment_id)
    holder = leases.hold_holder(tx, row)
    facts = facts_of(row, tx)
    if row is None or not row.live:
        raise missing() if missing else EnvironmentUnavailable(f"There is no Environment {environment_id} now.")
    if facts.resetting:
        raise TenantResetting("The Tenant is being reset. Try again.", retry_after=BUSY_RETRY)
    if owner is not None and row.owner_user_id not in (None, owner):
        raise NotFound
    if lifecycle.refusing_lease(row, facts.now) and row.suspend_after != "idle":
        raise lease_held(row.id)
    if row.kind == "pod":
        _check_pod(row, pods)
        _take_back_suspend(tx, row, holder, facts)
        wake_row(tx, row, facts)
    else:
        row.write(last_used_at=later(row.last_used_at, facts.now))
    seeds.queue_if_needed(tx, row, facts.now, hand_out=row.kind == "virtual" or row.observed == "running")
    return row, facts


def _check_pod(row: Environment, pods: PodsAvailable) -> None:
    pods.require(row.id)
    filling = row.observed == "lost" or row.disk_seed is not None
    if filling and dispatch.unfinished(row, "recover"):
        raise EnvironmentBusy(f"Environment {row.id} is being recovered.", retry_after=BUSY_RETRY)
    if row.observed == "lost":
        raise EnvironmentLost(row.id, row.reason)


def _take_back_suspend(tx: Tx, row: Environment, holder: Operation | None, facts: Facts) -> None:
    if row.suspend_after is None:
        return
    row.write(suspend_after=None)
    if holder is not None and holder.state in ("queued", "running"):
        endings.cancel(tx, row, holder, facts.now)


def wake_row(tx: Tx, row: Environment, facts: Facts) -> None:
    """Note use, and ask a stopped or failed pod to run; the caller holds the row and refused what is in the way."""
    used = later(row.last_used_at, facts.now)
    change = lifecycle.wake(row, now=facts.now, idle=facts.idle(row.recipe))
    if change.nothing:
        row.write(last_used_at=used, last_active_at=later(row.last_active_at, facts.now))
    else:
        apply_change(tx, row, change, last_used_at=used, updated_at=later(row.updated_at, facts.now))
