"""The transactional outbox: what must follow a commit is a row of that commit.

* :func:`post` writes the row inside the caller's transaction and hands it over right after the commit; a broker that
  does not take it costs time only, the drain finds the row.
* One open row per dedupe key: a second post replaces payload and time and counts as another wish (``posts``).
* :func:`settle` deletes a row (and :func:`keep` moves it on) only while ``posts`` is what the worker read at its
  start: a wish written meanwhile stays.
* Handing out again is no failure; only a task that raised counts an attempt. After ``PARK`` attempts a row is parked:
  kept, shown to operators, not sent any more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, database_now, transact
from nylorun.record.models import OutboxMessage

log = logging.getLogger(__name__)

PARK = 10
BATCH = 100
_ERROR_MAX = 2000

_POST = """
INSERT INTO record_outbox (topic, dedupe_key, payload, posts, due_at, attempts, last_error, created_at)
VALUES (%s, %s, %s, 1, %s, 0, '', %s)
ON CONFLICT (dedupe_key) DO UPDATE SET topic = EXCLUDED.topic, payload = EXCLUDED.payload, due_at = EXCLUDED.due_at,
    posts = record_outbox.posts + 1, attempts = 0, parked_at = NULL
"""


@dataclass(frozen=True, slots=True)
class Message:
    """A row to be handed over: ``delay`` seconds from now."""

    topic: str
    dedupe_key: str
    payload: Mapping[str, Any]
    delay: float = 0.0


class HandOver:
    """Who takes messages after a commit. ``workers`` registers the broker here; without one, rows wait for the
    drain.
    """

    send: Callable[[Message], None] = staticmethod(lambda message: None)


def retry_delay(attempt: int) -> timedelta:
    """``OUTBOX_RETRY``: 5 s doubling with each attempt (from 1), at most 10 min."""
    return timedelta(seconds=min(5 * 2 ** (max(attempt, 1) - 1), 600))


def post(tx: Tx, topic: str, key: str, payload: Mapping[str, Any], *, delay: float = 0.0) -> None:
    """Promise work in the caller's transaction; one open row per ``<topic>:<key>``. Takes lock rank 11."""
    message = Message(topic, f"{topic}:{key}", payload, delay)

    def write() -> None:
        now = tx.now()
        due_at = now + timedelta(seconds=delay)
        with connection.cursor() as cursor:
            cursor.execute(_POST, [topic, message.dedupe_key, json.dumps(dict(payload)), due_at, now])
        tx.after_commit(lambda: HandOver.send(message))

    tx.last(Rank.OUTBOX, message.dedupe_key, write)


def posts_of(dedupe_key: str) -> int | None:
    """How many wishes the open row has now, or ``None`` without one; a worker reads it before it looks at the world."""
    return OutboxMessage.objects.filter(dedupe_key=dedupe_key).values_list("posts", flat=True).first()


def waits(dedupe_key: str, early: timedelta) -> bool:
    """Whether the open row is set for a time later than ``early`` from now: another message comes for it then."""
    return OutboxMessage.objects.filter(dedupe_key=dedupe_key, due_at__gt=database_now() + early).exists()


def payload_of(dedupe_key: str) -> dict[str, Any]:
    """What the open row says now; empty without one."""
    found = OutboxMessage.objects.filter(dedupe_key=dedupe_key).values_list("payload", flat=True).first()
    return dict(found or {})


def settle(tx: Tx, dedupe_key: str, posts: int | None) -> None:
    """Finish a row at the end of the caller's transaction, only while no wish came since ``posts`` was read."""
    if posts is not None:
        row = OutboxMessage.objects.filter(dedupe_key=dedupe_key, posts=posts)
        tx.last(Rank.OUTBOX, dedupe_key, lambda: _discard(row))


def keep(tx: Tx, topic: str, key: str, payload: Mapping[str, Any], *, posts: int | None, again_in: float) -> None:
    """Keep a row for another look in ``again_in`` seconds, or make one; a wish that came meanwhile stays as it is."""
    dedupe_key = f"{topic}:{key}"
    if posts is None:
        post(tx, topic, key, payload, delay=again_in)
        return

    def write() -> None:
        row = OutboxMessage.objects.filter(dedupe_key=dedupe_key, posts=posts)
        if row.update(due_at=tx.now() + timedelta(seconds=again_in), attempts=0, payload=dict(payload)):
            tx.after_commit(lambda: HandOver.send(Message(topic, dedupe_key, payload, again_in)))

    tx.last(Rank.OUTBOX, dedupe_key, write)


def _discard(row: QuerySet[OutboxMessage]) -> None:
    row.delete()


def failed(dedupe_key: str, error: str) -> None:
    """Count an attempt that raised, in a transaction of its own; park the row after ``PARK`` of them."""

    def work(tx: Tx) -> OutboxMessage | None:
        row = tx.hold(Rank.OUTBOX, OutboxMessage.objects.filter(dedupe_key=dedupe_key), dedupe_key)
        if row is None:
            return None
        now = tx.now()
        row.attempts += 1
        row.last_error = error[:_ERROR_MAX]
        row.due_at = now + retry_delay(row.attempts)
        row.parked_at = now if row.attempts >= PARK else None
        row.save(update_fields=["attempts", "last_error", "due_at", "parked_at"])
        return row

    row = transact(work)
    if row is not None and row.parked_at is not None:
        log.error("outbox row %s is parked after %d attempts: %s", row.dedupe_key, row.attempts, row.last_error)


def claim_due(grace: timedelta, limit: int = BATCH) -> list[Message]:
    """Take rows due for ``grace`` and move their time on, in one short transaction; the caller sends them after it.

    No lock is held while sending, and a backlog of the workers is not sent again at every pass.
    """

    def work(tx: Tx) -> list[Message]:
        tx.take(Rank.OUTBOX, "")
        now = tx.now()
        rows = list(
            OutboxMessage.objects.filter(due_at__lte=now - grace, parked_at__isnull=True)
            .order_by("due_at")
            .select_for_update(skip_locked=True, no_key=True)[:limit]
        )
        for row in rows:
            row.due_at = now + retry_delay(row.attempts + 1)
        OutboxMessage.objects.bulk_update(rows, ["due_at"])
        return [Message(row.topic, row.dedupe_key, row.payload) for row in rows]

    return transact(work)


def retry_now(dedupe_key: str) -> bool:
    """Unpark a row and hand it over at once: an operator's wish. False when it is gone."""

    def work(tx: Tx) -> bool:
        row = tx.hold(Rank.OUTBOX, OutboxMessage.objects.filter(dedupe_key=dedupe_key), dedupe_key)
        if row is None:
            return False
        row.attempts, row.parked_at, row.due_at = 0, None, tx.now()
        row.save(update_fields=["attempts", "parked_at", "due_at"])
        message = Message(row.topic, row.dedupe_key, row.payload)
        tx.after_commit(lambda: HandOver.send(message))
        return True

    return transact(work)


def depth(now: datetime) -> tuple[int, int, float]:
    """Open rows, parked rows, and the age in seconds of the oldest open one: for metrics and operators."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FILTER (WHERE parked_at IS NULL), count(*) FILTER (WHERE parked_at IS NOT NULL),"
            " min(created_at) FILTER (WHERE parked_at IS NULL AND due_at <= %s) FROM record_outbox",
            [now],
        )
        waiting, parked, oldest = cursor.fetchone()
    return waiting, parked, (now - oldest).total_seconds() if oldest else 0.0
