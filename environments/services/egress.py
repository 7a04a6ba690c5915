"""What the egress gate asks of the rows: whom a token lets out, and where to; what it may not do is put on record.

* A token of a pod bears epoch and pod, one of a virtual workspace the row's ``uid``. Either is over as soon as the row
  moved on: another pod or row, stopped, lost, being deleted.
* The Recipe's list is that of the applied Recipe, the ceiling that of the Tenant at this moment.
* Locks: Environment row, to append an event; nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from environments.models import LIVE, Environment, rows
from environments.services.rows import facts_of, hold_row
from nylorun.access import signing
from nylorun.access.signing import TokenInvalid, TokenOver
from nylorun.db.tx import Tx, database_now, transact
from nylorun.kernel.sealing import Unreadable
from nylorun.record import events
from vault.gate.doorkeeper import CannotOpen, Opened, Pass, Refused, Stale, Whose
from vault.services import listing, opening
from vault.services.audit import SYSTEM, Trail


def admit(token: str) -> Pass | Stale:
    """What this token lets through now."""
    try:
        claims = signing.verify(signing.EGRESS, token, now=database_now())
    except (TokenInvalid, TokenOver):
        return Stale()
    row = rows().one(str(claims["sub"]), where=LIVE)
    if row is None:
        return Stale()
    if not _is_of(claims, row):
        return Stale(Whose(row.id, row.uid))
    return _pass(row, facts_of(row).settings.network)


def open_bound(admitted: Pass, host: str) -> Sequence[Opened]:
    """The hidden Secrets bound to ``host``, opened after their use was committed; raises :class:`CannotOpen`."""
    trail = Trail(SYSTEM, environment_id=admitted.whose.environment_id)
    try:
        opened = opening.open_bound(admitted.whose.uid, host, trail=trail)
    except Unreadable as error:
        raise CannotOpen from error
    return [Opened(one.type, one.binding, one.value) for one in opened]


def via_allowed(via: str) -> bool:
    """Whether the Tenant lets requests go there now."""
    return via in facts_of(None).settings.via


def compare(passes: Collection[Pass]) -> dict[Pass, Pass]:
    """The same passes as the rows say now, without those whose row, epoch or state moved on."""
    ids = {admitted.whose.environment_id for admitted in passes}
    found = {row.id: row for row in Environment.objects.live().filter(pk__in=ids)}
    ceiling = facts_of(None).settings.network
    now = {id: _pass(row, ceiling) for id, row in found.items()}
    return {
        admitted: now[admitted.whose.environment_id]
        for admitted in passes
        if _still(admitted, found.get(admitted.whose.environment_id))
    }


def record(refused: Refused) -> None:
    """Append one event ``egress``; a row that is gone has no record any more."""

    def work(tx: Tx) -> None:
        row = hold_row(tx, refused.whose.environment_id)
        if row is not None and row.live and row.uid == refused.whose.uid:
            events.append(tx, row.id, row.noun, "egress", refused.payload())

    transact(work)


def _pass(row: Environment, ceiling: tuple[str, ...] | None) -> Pass:
    network = row.applied.get("network")
    return Pass(
        whose=Whose(row.id, row.uid),
        epoch=row.host_epoch or 0,
        allowed=None if network is None else tuple(network["allow"]),
        ceiling=ceiling,
        bound=_bound_hosts(row),
    )


def _is_of(claims: Mapping[str, Any], row: Environment) -> bool:
    if row.kind == "pod":
        return _runs(row) and claims.get("epc") == row.host_epoch and claims.get("pod") == row.pod_uid
    return row.kind == "virtual" and claims.get("uid") == str(row.uid)


def _still(admitted: Pass, row: Environment | None) -> bool:
    if row is None or row.uid != admitted.whose.uid:
        return False
    return row.kind != "pod" or (_runs(row) and row.host_epoch == admitted.epoch)


def _runs(row: Environment) -> bool:
    return row.desired == "running" and row.observed == "running"


def _bound_hosts(row: Environment) -> frozenset[str]:
    if not row.has_secrets:
        return frozenset()
    return frozenset(host for secret in listing.bound_to(row.uid) for host in secret.hosts)
