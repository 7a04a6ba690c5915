"""The start check: what every Tool call outside a Session and every wake must pass, and what it writes.

Made under the Environment row's lock, held until the commit, so that a start and disk work never decide at the same
moment. In its order: gone, owner guard, kind, leases, pods available, lost, wake.
"""

from __future__ import annotations

from environments import lifecycle
from environments.errors import (
    BUSY_RETRY,
    EnvironmentLost,
    EnvironmentUnavailable,
    TenantResetting,
    lease_held,
)
from environments.models import Environment
from environments.services.available import PodsAvailable
from environments.services.rows import Facts, apply_change, later
from nylorun.db.tx import Tx
from nylorun.kernel.errors import NotFound


def check_start(
    tx: Tx, row: Environment | None, facts: Facts, *, environment_id: str, owner: str | None, pods: PodsAvailable
) -> Environment:
    """Refuse or record the start: use is noted, and a stopped or failed pod is asked to run after the commit.

    ``owner`` is the person the call is for; a bare application key (``None``) passes the guard.
    """
    if row is None or not row.live:
        raise EnvironmentUnavailable(f"There is no Environment {environment_id} now.")
    if facts.resetting:
        raise TenantResetting("The Tenant is being reset. Try again.", retry_after=BUSY_RETRY)
    if owner is not None and row.owner_user_id not in (None, owner):
        raise NotFound
    if row.kind != "none" and lifecycle.refusing_lease(row, facts.now):
        raise lease_held(row.id)
    if row.kind != "pod":
        row.write(last_used_at=later(row.last_used_at, facts.now))
        return row
    pods.require(row.id)
    if row.observed == "lost":
        raise EnvironmentLost(row.id, row.reason)
    _wake(tx, row, facts)
    return row


def _wake(tx: Tx, row: Environment, facts: Facts) -> None:
    used = later(row.last_used_at, facts.now)
    change = lifecycle.wake(row, now=facts.now, idle=facts.idle(row.recipe))
    if change.nothing:
        row.write(last_used_at=used, last_active_at=later(row.last_active_at, facts.now))
    else:
        apply_change(tx, row, change, last_used_at=used, updated_at=later(row.updated_at, facts.now))


def setup_pending(row: Environment) -> bool:
    """Whether files or setup commands of the Recipe still have to run on this volume before the first call."""
    wanted = bool(row.applied.get("setup") or row.applied.get("files"))
    return row.kind == "pod" and wanted and row.setup_done_gen != row.volume_gen


def ready(row: Environment) -> bool:
    """Whether a call may be sent now: the Engine joined, no disk seed waits, setup is done."""
    if row.kind == "virtual":
        return row.disk_seed is None
    return (
        row.desired == "running"
        and row.observed == "running"
        and row.engine_address is not None
        and row.disk_seed is None
        and not setup_pending(row)
    )
