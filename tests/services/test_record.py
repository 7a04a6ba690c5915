"""Events and outbox as a commit sees them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from nylorun.db.tx import Tx, database_now, transact
from nylorun.record import events, outbox
from nylorun.record.catalogue import AGENT_TYPES, ENVIRONMENT_TYPES, UncataloguedEvent
from nylorun.record.models import Event, OutboxMessage
from nylorun.record.outbox import Message

pytestmark = pytest.mark.django_db


def append(tx: Tx, type: str = "created", **payload: Any) -> None:
    events.append(tx, "demo", "environment", type, payload or {"kind": "none", "labels": {}})


def test_numbers_have_no_gaps_and_a_rolled_back_commit_leaves_nothing() -> None:
    """E-142, E-146: seq from 0, raised in the causing transaction."""
    transact(append)

    def fails(tx: Tx) -> None:
        append(tx)
        raise ValueError

    with pytest.raises(ValueError):
        transact(fails)
    transact(append)
    assert list(Event.objects.values_list("seq", flat=True).order_by("seq")) == [0, 1]


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("created", {"kind": "pod"}),
        ("created", {"kind": "other", "labels": {}}),
        ("running", {}),
        ("running", {"hostEpoch": "1"}),
        ("running", {"hostEpoch": True}),
        ("suspended", {"reason": "bored"}),
        ("deleted", {"reason": "other"}),
        ("run", {}),
        ("invented", {}),
    ],
)
def test_a_payload_the_catalogue_does_not_describe_aborts(type: str, payload: dict[str, Any]) -> None:
    """E-147: checked on write; the transaction leaves nothing."""

    def work(tx: Tx) -> None:
        outbox.post(tx, "reconcile", "demo", {})
        events.append(tx, "demo", "environment", type, payload)

    with pytest.raises(UncataloguedEvent):
        transact(work)
    assert (Event.objects.count(), OutboxMessage.objects.count()) == (0, 0)


def test_unknown_members_are_passed_on() -> None:
    """E-147: payloads are open."""
    transact(lambda tx: append(tx, "running", hostEpoch=1, more="x"))
    assert Event.objects.get().payload == {"hostEpoch": 1, "more": "x"}


def test_the_catalogue_has_twelve_and_twenty_types() -> None:
    """E-141: the types of both nouns."""
    assert (len(ENVIRONMENT_TYPES), len(AGENT_TYPES)) == (12, 20)


def test_the_time_of_a_stream_never_goes_back(clock: Any) -> None:
    """E-296, pain 14: a clock stepped back an hour."""
    transact(append)
    clock.advance(hours=-1)
    transact(append)
    first, second = Event.objects.order_by("seq").values_list("time", flat=True)
    assert second >= first


def post(tx: Tx, delay: float = 0.0, **payload: Any) -> None:
    outbox.post(tx, "reconcile", "demo", {"environmentId": "demo", "trigger": "reconcile", **payload}, delay=delay)


def test_a_second_post_replaces_and_counts_as_another_wish() -> None:
    """E-113, E-115: one open row per key."""
    transact(lambda tx: post(tx, 60, n=1))
    transact(lambda tx: post(tx, n=2))
    row = OutboxMessage.objects.get()
    assert (row.posts, row.payload["n"], row.due_at <= database_now()) == (2, 2, True)


def test_messages_are_handed_over_after_the_commit_only(handed: list[Message]) -> None:
    """E-113: a rolled-back commit hands nothing over."""

    def work(tx: Tx) -> None:
        post(tx)
        assert handed == []

    transact(work)
    assert [message.dedupe_key for message in handed] == ["reconcile:demo"]


def test_settle_keeps_a_row_that_was_written_again() -> None:
    """E-286: deleted only while posts is what the task read."""
    transact(post)
    posts = outbox.posts_of("reconcile:demo")
    transact(post)
    transact(lambda tx: outbox.settle(tx, "reconcile:demo", posts))
    assert OutboxMessage.objects.count() == 1
    transact(lambda tx: outbox.settle(tx, "reconcile:demo", outbox.posts_of("reconcile:demo")))
    assert OutboxMessage.objects.count() == 0


def test_failures_back_off_and_park(clock: Any) -> None:
    """E-114: 5 s doubling to 10 min; parked after ten attempts; retry now leads out."""
    transact(post)
    delays = []
    for _ in range(10):
        outbox.failed("reconcile:demo", "the Driver broke")
        row = OutboxMessage.objects.get()
        delays.append(round((row.due_at - database_now()).total_seconds()))
    assert delays == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert row.parked_at is not None
    assert outbox.claim_due(timedelta(0)) == []
    assert outbox.retry_now("reconcile:demo")
    assert [message.dedupe_key for message in outbox.claim_due(timedelta(0))] == ["reconcile:demo"]


def test_the_drain_leaves_young_rows_and_does_not_send_a_backlog_again(clock: Any) -> None:
    """E-114, E-286: OUTBOX_GRACE; a handed-out row is due later."""
    transact(post)
    grace = timedelta(seconds=30)
    assert outbox.claim_due(grace) == []
    clock.advance(seconds=31)
    assert len(outbox.claim_due(grace)) == 1
    assert outbox.claim_due(grace) == []
    clock.advance(seconds=36)
    assert len(outbox.claim_due(grace)) == 1
    assert OutboxMessage.objects.get().attempts == 0


def test_rows_not_due_yet_stay(clock: Any) -> None:
    """E-114: again in n seconds is a column."""
    transact(lambda tx: post(tx, delay=120))
    clock.advance(seconds=100)
    assert outbox.claim_due(timedelta(0)) == []
