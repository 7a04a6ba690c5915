"""The door to a transaction: order of locks, one clock, starting over."""

from __future__ import annotations

import psycopg
import pytest
from django.db import OperationalError

from nylorun.db.locks import LockOrderError, Rank, StartOver
from nylorun.db.tx import TransactionOpen, Tx, require_no_tx, transact
from nylorun.kernel.errors import ServiceUnavailable

pytestmark = pytest.mark.django_db


def test_locks_go_down_only() -> None:
    """E-269: one lock order; a step back up is a bug, raised in production too."""

    def work(tx: Tx) -> None:
        tx.take(Rank.OPERATION, "op_1")
        tx.take(Rank.ENVIRONMENT, "demo")

    with pytest.raises(LockOrderError):
        transact(work)


def test_rows_of_one_rank_go_by_ascending_key() -> None:
    """E-269."""

    def work(tx: Tx) -> None:
        tx.take(Rank.ENVIRONMENT, "b")
        tx.take(Rank.ENVIRONMENT, "a")

    with pytest.raises(LockOrderError):
        transact(work)


def test_now_is_read_once_and_after_the_locks_that_decide() -> None:
    """E-296: a lock taken after now would make it a time before the decision."""

    def work(tx: Tx) -> None:
        first = tx.now()
        assert tx.now() == first
        tx.take(Rank.STREAM, "demo")
        with pytest.raises(LockOrderError):
            tx.take(Rank.ENVIRONMENT, "demo")

    transact(work)


def test_what_is_kept_for_the_end_runs_in_lock_order() -> None:
    """E-269: stream heads before outbox rows, each ascending."""
    order: list[str] = []

    def work(tx: Tx) -> None:
        tx.last(Rank.OUTBOX, "b", lambda: order.append("outbox b"))
        tx.last(Rank.OUTBOX, "a", lambda: order.append("outbox a"))
        tx.last(Rank.STREAM, "z", lambda: order.append("stream z"))

    transact(work)
    assert order == ["stream z", "outbox a", "outbox b"]


def test_a_lost_race_starts_over_three_times_then_503() -> None:
    """Rolled back and run again from its start, at most three times."""
    runs: list[int] = []

    def loses_twice(tx: Tx) -> str:
        runs.append(1)
        if len(runs) < 3:
            raise StartOver
        return "won"

    assert transact(loses_twice) == "won"

    def always(tx: Tx) -> None:
        runs.append(1)
        raise StartOver

    runs.clear()
    with pytest.raises(ServiceUnavailable):
        transact(always)
    assert len(runs) == 3


def test_a_lock_not_had_starts_over() -> None:
    """LOCK_WAIT over: the same."""
    runs: list[int] = []

    def work(tx: Tx) -> int:
        runs.append(1)
        if len(runs) == 1:
            raise OperationalError from psycopg.errors.LockNotAvailable()
        return len(runs)

    assert transact(work) == 2


def test_transactions_do_not_nest_and_work_outside_is_refused_inside() -> None:
    """No network, disk or process work inside a transaction."""

    def work(tx: Tx) -> None:
        with pytest.raises(TransactionOpen):
            transact(lambda inner: None)
        with pytest.raises(TransactionOpen):
            require_no_tx()

    transact(work)
    require_no_tx()


def test_follow_ups_run_after_the_commit_only() -> None:
    """after_commit is dropped by a rollback."""
    done: list[str] = []

    def fails(tx: Tx) -> None:
        tx.after_commit(lambda: done.append("never"))
        raise ValueError

    with pytest.raises(ValueError):
        transact(fails)
    transact(lambda tx: tx.after_commit(lambda: done.append("once")))
    assert done == ["once"]
