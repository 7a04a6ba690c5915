"""The journal of a Tool call outside a Session: three short commits around the work in the sandbox.

* A, :func:`begin`: the start check, use, and the Effect; on an Environment that is ready already the Effect begins as
  ``invoking`` and B falls away, so a warm call is two commits. From A on the Environment is busy while the lease lives.
* B, :func:`invoke`: the Environment became ready; the Effect is sent from here on.
* C, :func:`finish`: only while the Effect is still ``invoking`` (else somebody settled it): the row without a key goes,
  and the idle timer starts again.
* An Effect whose lease lapsed while ``invoking`` is never run again; while ``pending`` it was never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection

from environments.commands import CallTool
from environments.errors import EnvironmentLost, EnvironmentUnavailable
from environments.models import LIVE, Effect, Environment, rows
from environments.services import dispatch, operations, variables
from environments.services.available import PodsAvailable
from environments.services.readiness import ready
from environments.services.rows import ask_reconcile, facts_of, hold_row, later
from environments.services.start import check_start
from environments.services.variables import Noted
from environments.services.workplace import Workplace, workplace_of
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact
from nylorun.kernel.ids import ulid

EFFECT_LEASE = timedelta(seconds=30)
RENEW_SECONDS = 10.0
SEEN_EVERY = timedelta(seconds=20)

# Every call runs these two; as querysets they would be built anew each time.
_JOURNAL = """
INSERT INTO environments_effect
  (id, environment_id, uid, kind, tool, hash, status, host_epoch, lease_until, started_at)
VALUES (%s, %s, %s, 'sandbox', %s, %s, %s, %s, %s, %s)
"""
_SETTLE = "DELETE FROM environments_effect WHERE id = %s AND status = 'invoking'"


@dataclass(frozen=True, slots=True)
class Begun:
    """A journaled call: ``workplace`` is set when it may be sent at once; ``noted`` are the variables it then takes."""

    effect_id: str
    uid: UUID
    workplace: Workplace | None
    noted: Noted | None = None


def begin(call: CallTool, *, owner: str | None, pods: PodsAvailable, takes: str | None = None) -> Begun:
    """Commit A: check the start, record use, journal the call. With ``takes`` it takes variables, for that actor."""

    def work(tx: Tx) -> Begun:
        row, facts = check_start(tx, call.environment_id, owner=owner, pods=pods)
        if row.kind == "none":
            raise EnvironmentUnavailable(f"Environment {row.id} is of kind none: it has no sandbox to call.")
        at_once = ready(row)
        effect_id = ulid("ef", facts.now)
        status, epoch = ("invoking", row.host_epoch) if at_once else ("pending", None)
        lease = facts.now + EFFECT_LEASE
        tx.take(Rank.EFFECT, effect_id)
        with connection.cursor() as cursor:
            cursor.execute(
                _JOURNAL, [effect_id, row.id, row.uid, call.tool, call.hash, status, epoch, lease, facts.now]
            )
        if not at_once:
            return Begun(effect_id, row.uid, None)
        noted = None if takes is None else variables.note(tx, row, actor=takes, now=facts.now)
        return Begun(effect_id, row.uid, workplace_of(row, facts.settings.disk_bytes), noted)

    return transact(work)


def look(call: Begun, environment_id: str) -> bool:
    """One look of a waiting call, without a lock: true when it may be sent; raises when it never will be."""
    row = rows().one(environment_id, where=LIVE)
    if row is None:
        raise EnvironmentUnavailable(f"There is no Environment {environment_id} now.")
    if row.observed == "lost":
        raise EnvironmentLost(row.id, row.reason)
    if row.observed == "failed":
        raise EnvironmentUnavailable(f"Environment {row.id} could not start: {row.reason}")
    if row.desired == "suspended":
        raise EnvironmentUnavailable(f"Environment {row.id} was stopped while the call waited. Send it again.")
    if row.disk_seed is not None and not dispatch.unfinished(row, *operations.ON_NEW_DISKS):
        raise EnvironmentUnavailable(f"The disk of Environment {row.id} could not be filled. Send the call again.")
    return ready(row)


def invoke(call: Begun, environment_id: str, *, takes: str | None = None) -> tuple[Workplace, Noted | None] | None:
    """Commit B: the waiting call is sent from here on; ``None`` when the row is not ready after all."""

    def work(tx: Tx) -> tuple[Workplace, Noted | None] | None:
        effect = tx.hold(Rank.EFFECT, Effect.objects.filter(pk=call.effect_id), call.effect_id)
        row = rows().one(environment_id, where=LIVE)
        if effect is None or row is None or row.uid != effect.uid:
            raise EnvironmentUnavailable(f"Environment {environment_id} went away while the call waited.")
        if not ready(row):
            return None
        facts = facts_of(row, tx)
        effect.status, effect.host_epoch = "invoking", row.host_epoch
        effect.lease_until = facts.now + EFFECT_LEASE
        effect.save(update_fields=["status", "host_epoch", "lease_until"])
        noted = None if takes is None else variables.note(tx, row, actor=takes, now=facts.now)
        return workplace_of(row, facts.settings.disk_bytes), noted

    return transact(work)


def not_accepted(call: Begun, environment_id: str) -> None:
    """The Engine took nothing: the call waits again, and the machine is looked at."""

    def work(tx: Tx) -> None:
        row = hold_row(tx, environment_id)
        effect = tx.hold(Rank.EFFECT, Effect.objects.filter(pk=call.effect_id), call.effect_id)
        now = tx.now()
        if effect is not None and effect.status == "invoking":
            effect.status, effect.lease_until = "pending", now + EFFECT_LEASE
            effect.save(update_fields=["status", "lease_until"])
        if row is not None and row.live and row.kind == "pod":
            ask_reconcile(tx, row.id)

    transact(work)


def finish(call: Begun, environment_id: str, *, workspace_made: bool = False) -> bool:
    """Commit C: the call is over; false when somebody settled it meanwhile (its answer is ``tool.interrupted``
    then).
    """

    def work(tx: Tx) -> bool:
        row = hold_row(tx, environment_id)
        facts = facts_of(row, tx)
        tx.take(Rank.EFFECT, call.effect_id)
        with connection.cursor() as cursor:
            cursor.execute(_SETTLE, [call.effect_id])
            ours = cursor.rowcount
        if row is not None and row.live and row.uid == call.uid:
            _touch(row, facts.now, facts.idle(row.applied), workspace_made)
        return bool(ours)

    return transact(work)


def withdraw(call: Begun) -> None:
    """The call was never sent: its row goes, and with it what made the Environment busy."""

    def work(tx: Tx) -> None:
        tx.take(Rank.EFFECT, call.effect_id)
        Effect.objects.filter(pk=call.effect_id).delete()

    transact(work)


def _touch(row: Environment, now: datetime, idle: timedelta, workspace_made: bool) -> None:
    patch = _use(row, now, idle)
    if workspace_made and row.workspace_at is None:
        patch["workspace_at"] = now
    row.write(**patch)


def _use(row: Environment, now: datetime, idle: timedelta) -> dict[str, datetime]:
    used = later(row.last_used_at, now)
    patch: dict[str, datetime] = {"last_used_at": used, "last_active_at": later(row.last_active_at, used)}
    if row.kind == "pod" and row.desired == "running" and row.observed in ("creating", "running"):
        patch["idle_at"] = used + idle
        if row.engine_seen_at is None or used - row.engine_seen_at > SEEN_EVERY:
            patch["engine_seen_at"] = used
    return patch


def renew(effect_ids: Sequence[str]) -> None:
    """Keep these calls alive: one statement for all calls of a process, locks Effect rows alone."""

    def work(tx: Tx) -> None:
        ids = sorted(effect_ids)
        tx.take(Rank.EFFECT, ids[0])
        now = tx.now()
        Effect.objects.filter(pk__in=ids, status__in=("pending", "invoking")).update(lease_until=now + EFFECT_LEASE)

    if effect_ids:
        transact(work)


def remove_lapsed(limit: int = 500) -> int:
    """Remove calls whose process is gone: rows without a key whose lease has lapsed. Returns how many."""

    def work(tx: Tx) -> int:
        tx.take(Rank.EFFECT, "")
        now = tx.now()
        ids = list(
            Effect.objects.filter(key__isnull=True, status__in=("pending", "invoking"), lease_until__lte=now)
            .select_for_update(skip_locked=True, no_key=True)
            .values_list("pk", flat=True)[:limit]
        )
        Effect.objects.filter(pk__in=ids).delete()
        return len(ids)

    return transact(work)
