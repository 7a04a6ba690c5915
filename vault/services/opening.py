"""Opening Secrets: the use is written down and committed before a plaintext exists.

* A caller that has a transaction already (the start of a call or Turn) asks :func:`note_use` inside it and opens with
  the :class:`Permit` after its commit: it costs no commit of its own. A permit of a transaction that rolled back, or
  that is still open, opens nothing.
* The egress gate asks :func:`open_bound` for each tunnel: one commit of its own, then the values.
* What cannot be opened is :class:`~nylorun.kernel.sealing.Unreadable`, and a ``use`` row with outcome ``refused``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from nylorun.db.tx import Tx, require_no_tx, transact
from nylorun.kernel.errors import ServiceUnavailable
from nylorun.kernel.sealing import Unreadable
from vault import keys
from vault.bindings import HIDDEN, hosts_of
from vault.models import Secret
from vault.services import audit
from vault.services.audit import Trail
from vault.values import Value


class NotCommitted(AssertionError):
    """A bug: a Secret was to be opened although its use is not committed."""


@dataclass(slots=True)
class Permit:
    """Uses that were written down. Holds sealed rows only; good for the process that asked."""

    _trail: Trail = field(repr=False)
    _rows: Sequence[Secret] = field(repr=False)
    _target: str | None = None
    _committed: bool = False

    @property
    def names(self) -> list[str]:
        """The names it opens, sorted."""
        return sorted(row.name for row in self._rows)

    def commit_seen(self) -> None:
        """Called after the commit, by the transaction itself."""
        self._committed = True


@dataclass(frozen=True, slots=True)
class BoundValue:
    """An opened hidden Secret; its ``value`` hides itself."""

    id: UUID
    name: str
    type: str
    binding: dict[str, Any]
    value: Value


def note_use(tx: Tx, environment_uid: UUID, *, trail: Trail, now: datetime) -> Permit:
    """Write a ``use`` row for each ``environment_variable``; one query when there is none. Locks nothing."""
    rows = list(Secret.objects.of(environment_uid).filter(type="environment_variable"))
    return _note(tx, rows, trail, now, None)


def open_variables(permit: Permit) -> dict[str, Value]:
    """The variables by name, after the commit; raises :class:`Unreadable`."""
    return {row.name: value for row, value in _opened(permit)}


def open_bound(environment_uid: UUID, host: str, *, trail: Trail) -> list[BoundValue]:
    """The hidden Secrets bound to ``host`` (lower-cased), opened; their uses are committed first, with it as target."""

    def work(tx: Tx) -> Permit:
        rows = Secret.objects.of(environment_uid).filter(type__in=HIDDEN)
        bound = [row for row in rows if host in hosts_of(row.binding)]
        return _note(tx, bound, trail, tx.now(), host)

    permit = transact(work)
    return [BoundValue(row.id, row.name, row.type, row.binding, value) for row, value in _opened(permit)]


def _note(tx: Tx, rows: Sequence[Secret], trail: Trail, now: datetime, target: str | None) -> Permit:
    permit = Permit(trail, rows, target)
    if rows:
        audit.note(trail, "use", "approved", rows, at=now, target=target)
    tx.after_commit(permit.commit_seen)
    return permit


def _opened(permit: Permit) -> list[tuple[Secret, Value]]:
    require_no_tx()
    if not permit._committed:
        raise NotCommitted
    return [(row, _open_one(permit, row)) for row in permit._rows]


def _open_one(permit: Permit, row: Secret) -> Value:
    try:
        return keys.open_value(row.place, row.sealed)
    except Unreadable:
        _best_effort(lambda: transact(lambda tx: _refused(tx, permit, row)))
        raise


def _refused(tx: Tx, permit: Permit, row: Secret) -> None:
    audit.note(permit._trail, "use", "refused", [row], at=tx.now(), target=permit._target)


def _best_effort(act: Callable[[], None]) -> None:
    """The refusal itself is what the caller must hear, whether or not its row could be written."""
    try:
        act()
    except ServiceUnavailable:
        return
