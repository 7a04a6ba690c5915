"""The only door to a transaction.

    def stop(tx: Tx) -> View:
        row = tx.hold(Rank.ENVIRONMENT, Environment.objects.live(), pk=id)
        now = tx.now()
        ...
    view = transact(stop)

What a caller may rely on:
  * one ``transact`` is one database transaction, durable when it returns; nesting is refused;
  * locks follow :class:`~nylorun.db.locks.Rank`; a wait longer than ``LOCK_WAIT`` (5 s, set on the connection), a
    deadlock, a lost connection before the commit or a :class:`StartOver` rolls back and runs ``work`` again from its
    start, ``ATTEMPTS`` times in all, then :class:`ServiceUnavailable`; so ``work`` changes nothing but rows;
  * ``Tx.now()`` is the database's clock, read once, after the locks; inside one transaction it never differs;
  * what ``after_commit`` was given runs after the commit, outside any transaction, and only then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import TypeVar

import psycopg
from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.db.models import Model, QuerySet
from django.db.transaction import atomic  # noqa: TID251 the one door

from nylorun.db.locks import LockLedger, Rank, StartOver
from nylorun.kernel.errors import ServiceUnavailable

T = TypeVar("T")
M = TypeVar("M", bound=Model)

ATTEMPTS = 3
_AGAIN = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)

_current: ContextVar[Tx | None] = ContextVar("nylorun_tx", default=None)


class TransactionOpen(AssertionError):
    """A bug: network, disk or process work, or a second transaction, inside a transaction."""


class Clock:
    """What a time read from the database means. Tests put another meaning here; nothing else does."""

    of: Callable[[datetime], datetime] = staticmethod(lambda moment: moment)


def database_now() -> datetime:
    """The database's clock at this moment: the transaction's start time lies before its waits for locks."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return Clock.of(cursor.fetchone()[0])


class Tx:
    """One open transaction: its locks, its clock, and what follows its commit."""

    def __init__(self) -> None:
        self._ledger = LockLedger()
        self._now: datetime | None = None
        self._last: list[tuple[Rank, str, Callable[[], None]]] = []
        self.follow_ups: list[Callable[[], None]] = []

    def hold(self, rank: Rank, rows: QuerySet[M], key: str, *, to_delete: bool = False) -> M | None:
        """Lock the one row of ``rows`` named ``key`` and return it as it is under the lock, or ``None``.

        ``rows`` is already narrowed to that row; ``key`` is what orders it among others of its rank. The row is locked
        ``FOR NO KEY UPDATE``, so foreign-key checks of child rows do not wait for it; ``to_delete`` locks ``FOR
        UPDATE``.
        """
        self._ledger.take(rank, key)
        return rows.select_for_update(of=("self",), no_key=not to_delete).first()

    def hold_all(self, rank: Rank, rows: QuerySet[M], *, to_delete: bool = False) -> list[M]:
        """Lock every row of ``rows`` by ascending primary key and return them as they are under their locks."""
        held = list(rows.order_by("pk").select_for_update(of=("self",), no_key=not to_delete))
        for row in held:
            self._ledger.take(rank, str(row.pk))
        return held

    def take(self, rank: Rank, key: str) -> None:
        """Note a lock that the next statement takes by itself: a unique insert or an ``UPDATE`` of one row."""
        self._ledger.take(rank, key)

    def now(self) -> datetime:
        """The time of this transaction, read at the first call: after every lock that decides."""
        if self._now is None:
            self._ledger.read_now()
            self._now = database_now()
        return self._now

    def saw_clock(self, moment: datetime) -> datetime:
        """Use a ``clock_timestamp()`` that another query of this transaction, run after its locks, brought along."""
        if self._now is None:
            self._ledger.read_now()
            self._now = Clock.of(moment)
        return self._now

    def last(self, rank: Rank, key: str, action: Callable[[], None]) -> None:
        """Run ``action``, which takes the lock ``(rank, key)``, at the end of this transaction, in lock order.

        For rows whose order nobody can know while the work goes on (stream heads, outbox rows); their locks are thus
        also held for the shortest time.
        """
        self._last.append((rank, key, action))

    def finish(self) -> None:
        """Run what was kept for the end; ``transact`` calls it just before the commit."""
        for rank, key, action in sorted(self._last, key=lambda kept: kept[:2]):
            self._ledger.take(rank, key)
            action()

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run ``action`` once this transaction is committed; losing it must only cost time."""
        self.follow_ups.append(action)


def transact(work: Callable[[Tx], T]) -> T:
    """Run ``work`` in one durable transaction, again from its start when it met a lock it could not have."""
    require_no_tx()
    cause: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            return _once(work)
        except StartOver as again:
            cause = again
        except DatabaseError as error:
            if not _may_run_again(error):
                raise
            cause = error
    raise ServiceUnavailable from cause


def require_no_tx() -> None:
    """Refuse to go on inside a transaction: Drivers, stores and clients call this before any I/O."""
    if _current.get() is not None:
        raise TransactionOpen("this work may not run inside a transaction")


def _once(work: Callable[[Tx], T]) -> T:
    tx = Tx()
    token = _current.set(tx)
    done = False
    try:
        with atomic(durable=True):
            result = work(tx)
            tx.finish()
            done = True
    except (OperationalError, InterfaceError) as error:
        if done:
            # Nobody knows whether the commit arrived: running again could do the work twice.
            raise ServiceUnavailable from error
        raise
    finally:
        _current.reset(token)
    for action in tx.follow_ups:
        action()
    return result


def _may_run_again(error: DatabaseError) -> bool:
    if isinstance(error.__cause__, _AGAIN):
        return True
    lost = isinstance(error, OperationalError) and connection.connection is not None and connection.connection.closed
    if lost:
        connection.close()
    return bool(lost)
