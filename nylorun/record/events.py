"""The event streams: appended in the transaction that causes them, read by number.

* :func:`append` runs at the end of the caller's transaction, under the stream head's lock (rank 10): ``seq`` counts
  from 0 without gaps, ``time`` never goes back within a stream, and a rolled-back transaction leaves nothing.
* Envelope and payload are checked against the catalogue; one it does not describe aborts the transaction.
* :func:`read` answers envelopes by ``seq``; whether the thing still exists does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import connection

from nylorun.db.locks import Rank
from nylorun.db.tx import Tx
from nylorun.kernel.clock import iso
from nylorun.kernel.ids import new_uid
from nylorun.record.catalogue import check_payload, is_type
from nylorun.record.models import Event

READ_MAX = 1000

_RAISE_HEAD = """
INSERT INTO record_stream_head (key, next_seq) VALUES (%s, 1)
ON CONFLICT (key) DO UPDATE SET next_seq = record_stream_head.next_seq + 1 RETURNING next_seq - 1
"""
_INSERT = """
INSERT INTO record_event (stream, seq, event_id, noun, type, time, payload)
SELECT %s, %s, %s, %s, %s, greatest(%s, (SELECT time FROM record_event WHERE stream = %s AND seq = %s)), %s
"""


def append(tx: Tx, environment_id: str, noun: str, type: str, payload: Mapping[str, Any]) -> None:
    """Add one event to an Environment's stream; the caller holds (or just made) the Environment's row."""
    check_payload(noun, type, payload)
    kept = dict(payload)
    event_id = new_uid()

    def write() -> None:
        now = tx.now()
        with connection.cursor() as cursor:
            cursor.execute(_RAISE_HEAD, [environment_id])
            seq = cursor.fetchone()[0]
            cursor.execute(
                _INSERT, [environment_id, seq, event_id, noun, type, now, environment_id, seq - 1, json.dumps(kept)]
            )

    tx.last(Rank.STREAM, environment_id, write)


def read(
    environment_id: str,
    *,
    tenant: str,
    start: int = 0,
    limit: int = 200,
    types: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    last: int | None = None,
) -> list[dict[str, Any]]:
    """Envelopes from ``start`` (inclusive) on, by number; ``since`` is inclusive, ``until`` exclusive.

    ``last`` asks for that many from the stream's end instead.
    """
    if last is not None:
        tail = list(Event.objects.filter(stream=environment_id).order_by("-seq")[:last])
        return [envelope(row, tenant) for row in reversed(tail)]
    rows = Event.objects.filter(stream=environment_id, seq__gte=start).order_by("seq")
    if types:
        pairs = [full.split(".", 1) for full in types]
        rows = rows.filter(noun__in={noun for noun, _ in pairs}, type__in={short for _, short in pairs})
    if since is not None:
        rows = rows.filter(time__gte=since)
    if until is not None:
        rows = rows.filter(time__lt=until)
    return [envelope(row, tenant) for row in rows[: min(limit, READ_MAX)]]


def envelope(event: Event, tenant: str) -> dict[str, Any]:
    """The wire form: schema, id member and type prefix follow the noun of the row it tells of."""
    return {
        "schema": f"nylorun.{event.noun}-event/1",
        "eventId": str(event.event_id),
        "tenantId": tenant,
        f"{event.noun}Id": event.stream,
        "seq": event.seq,
        "time": iso(event.time),
        "type": f"{event.noun}.{event.type}",
        "payload": event.payload,
    }


def known_type(full: str) -> bool:
    """Whether ``environment.created`` and the like is in the catalogue."""
    noun, _, short = full.partition(".")
    return is_type(noun, short)
