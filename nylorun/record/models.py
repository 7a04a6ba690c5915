"""Rows of the record: event streams without gaps, the transactional outbox, answers kept for a repeat.

* An ``Event`` is appended in the transaction that caused it and never changed; it has no foreign key, so it survives
  the thing it tells of, and a thing made again under the same id continues the numbers.
* An ``OutboxMessage`` is work a commit promised; one open row per ``dedupe_key``.
* An ``Idempotency`` row is the stored answer of a request with a key: see :mod:`nylorun.record.replay`.
"""

from __future__ import annotations

from django.db import models


class StreamHead(models.Model):
    """The next free number of one stream; locking it makes the numbers gapless."""

    key = models.TextField(primary_key=True, db_collation="C")
    next_seq = models.BigIntegerField(default=0)

    class Meta:
        db_table = "record_stream_head"

    def __str__(self) -> str:
        return f"{self.key} @ {self.next_seq}"


class Event(models.Model):
    """One fact: ``seq`` counts from 0 without gaps per stream, ``time`` never goes back within one."""

    stream = models.TextField(db_collation="C")
    seq = models.BigIntegerField()
    event_id = models.UUIDField()
    noun = models.TextField()
    type = models.TextField()
    time = models.DateTimeField()
    payload = models.JSONField()

    class Meta:
        db_table = "record_event"
        constraints = [models.UniqueConstraint(fields=["stream", "seq"], name="event_seq_is_unique")]

    def __str__(self) -> str:
        return f"{self.stream} {self.seq} {self.noun}.{self.type}"


class OutboxMessage(models.Model):
    """Work that follows a commit. ``posts`` counts the wishes; it is deleted only while that number is unchanged."""

    topic = models.TextField()
    dedupe_key = models.TextField(unique=True, db_collation="C")
    payload = models.JSONField()
    posts = models.BigIntegerField(default=1)
    due_at = models.DateTimeField()
    attempts = models.IntegerField(default=0)
    parked_at = models.DateTimeField(null=True)
    last_error = models.TextField(default="", blank=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "record_outbox"
        indexes = [
            models.Index(fields=["due_at"], name="outbox_due", condition=models.Q(parked_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.dedupe_key}"


class Idempotency(models.Model):
    """The answer of a request that was sent with a key. ``response`` is sealed; empty only inside its transaction."""

    id = models.TextField(primary_key=True, db_collation="C")
    body_hash = models.TextField()
    status = models.IntegerField(null=True)
    response = models.BinaryField(null=True)
    operation_id = models.TextField(null=True)  # noqa: DJ001 NULL says that no Operation answers
    created_at = models.DateTimeField()

    class Meta:
        db_table = "record_idempotency"
        indexes = [models.Index(fields=["created_at"], name="idempotency_old")]

    def __str__(self) -> str:
        return f"{self.id[:60]} {self.status}"
