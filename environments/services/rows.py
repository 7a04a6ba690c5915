"""What every service needs of an Environment row: holding it, and the facts that decide beside it.

One query brings what changes while a lock is waited for (the clock, the Tenant's settings, whether a call runs), run
after the row's lock, so a decision never mixes old and new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from environments import lifecycle
from environments.errors import being_deleted, call_runs, lease_held
from environments.models import Environment, rows
from manifests.settings import Effective, in_force
from nylorun.db.locks import Rank
from nylorun.db.tx import Clock, Tx
from nylorun.kernel.errors import NotFound
from nylorun.record import events, outbox
from nylorun.tenant.store import SANDBOX_CONFIG

_FACTS = """
SELECT clock_timestamp(),
       (SELECT value FROM tenant_setting WHERE name = %s),
       EXISTS (SELECT 1 FROM environments_effect
               WHERE uid = %s AND status IN ('pending', 'invoking') AND lease_until > clock_timestamp()),
       (SELECT value FROM tenant_setting WHERE name = 'tenant.resetting')
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides beside the row, all of one moment."""

    now: datetime
    settings: Effective
    busy: bool
    resetting: bool

    def idle(self, recipe: Mapping[str, Any]) -> timedelta:
        """How long a pod of this Recipe is left alone before it is suspended; never above the Tenant's."""
        return lifecycle.idle_time(recipe, self.settings.idle)


def hold_row(tx: Tx, environment_id: str, *, to_delete: bool = False) -> Environment | None:
    """Lock the row of this id, live or being deleted."""
    tx.take(Rank.ENVIRONMENT, environment_id)
    return rows().one(environment_id, lock=" FOR UPDATE" if to_delete else " FOR NO KEY UPDATE")


def hold_live(tx: Tx, environment_id: str) -> Environment:
    """Lock a live row; missing or being deleted is the opaque 404."""
    row = hold_row(tx, environment_id)
    if row is None or not row.live:
        raise NotFound
    return row


def facts_of(row: Environment | None, tx: Tx | None = None) -> Facts:
    """Read the facts; inside a transaction its one ``now`` is theirs, so the locks that decide are held already."""
    with connection.cursor() as cursor:
        cursor.execute(_FACTS, [SANDBOX_CONFIG, None if row is None else row.uid])
        clock, config, busy, resetting = cursor.fetchone()
    now = Clock.of(clock) if tx is None else tx.saw_clock(clock)
    until = datetime.fromisoformat(json.loads(resetting)["until"]) if resetting else None
    return Facts(now, in_force(json.loads(config) if config else None), busy, until is not None and until > now)


def refuse_while_used(row: Environment, facts: Facts) -> None:
    """Refuse while a call runs or a snapshot or restore holds the disk: stop, reset and delete wait for neither."""
    if not row.live:
        raise being_deleted(row.id)
    if facts.busy:
        raise call_runs(row.id)
    if lifecycle.refusing_lease(row, facts.now):
        raise lease_held(row.id)


def apply_change(tx: Tx, row: Environment, change: lifecycle.Change, **more: Any) -> None:
    """Write a command's columns, append its events and ask for a reconcile: one commit with the caller's."""
    patch = {**change.patch, **more}
    if patch:
        row.write(**patch)
    for type, payload in change.events:
        events.append(tx, row.id, row.noun, type, payload)
    if change.reconcile:
        ask_reconcile(tx, row.id)


def ask_reconcile(tx: Tx, environment_id: str) -> None:
    """Promise a look at the machine."""
    outbox.post(tx, "reconcile", environment_id, {"environmentId": environment_id, "trigger": "reconcile"})


def later(one: datetime | None, other: datetime) -> datetime:
    """The later of two times: the times of a row never go back."""
    return other if one is None or other > one else one
