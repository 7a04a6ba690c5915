"""Idle timers after a change of the Tenant's settings: set again for every running pod, row by row, best effort."""

from __future__ import annotations

import logging

from environments import lifecycle
from environments.models import Environment
from environments.services.rows import facts_of, hold_row, later
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import ApiError
from nylorun.record import outbox

log = logging.getLogger(__name__)

TOPIC, KEY = "sandbox.rearm", "all"


def ask_rearm() -> None:
    """Promise that the timers are set again; a failure is only logged, since the settings are saved already."""
    try:
        transact(lambda tx: outbox.post(tx, TOPIC, KEY, {}))
    except ApiError:
        log.exception("idle timers keep their earlier times until the next use of each pod")


def rearm_all() -> None:
    """Set every running pod's timer by the settings of now, and settle the promise."""
    posts = outbox.posts_of(f"{TOPIC}:{KEY}")
    for environment_id in Environment.objects.filter(desired="running").order_by("pk").values_list("pk", flat=True):
        try:
            rearm(environment_id)
        except ApiError:
            log.exception("the idle timer of %s could not be set again", environment_id)
    transact(lambda tx: outbox.settle(tx, f"{TOPIC}:{KEY}", posts))


def rearm(environment_id: str) -> None:
    """Set one running pod's idle timer."""

    def work(tx: Tx) -> None:
        row = hold_row(tx, environment_id)
        if row is None or row.desired != "running" or row.observed not in ("creating", "running"):
            return
        facts = facts_of(row, tx)
        row.write(idle_at=lifecycle.idle_due(row, facts.idle(row.applied)), updated_at=later(row.updated_at, facts.now))

    transact(work)
