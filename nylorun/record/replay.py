"""Idempotency keys: a repeated request is answered with the stored answer of the first, and nothing runs again.

* :func:`claim` is the first statement of the transaction that does the work: of two requests with one key the second
  waits there for the first one's commit. :func:`keep` stores the answer in the same transaction, so a refusal leaves no
  row behind.
* The answer is sealed (its associated data is the table and the row's id) and holds no value of a Secret.
* A key belongs to route, kind of Caller, actor and path. A body is compared by a hash: a plain one, or, where a body
  holds a value, one under the keyring, compared with each of its keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from nylorun.db.locks import Rank, StartOver
from nylorun.db.tx import Tx, database_now, transact
from nylorun.http.caller import Caller
from nylorun.kernel.canonical import canonical
from nylorun.kernel.errors import IdempotencyConflict
from nylorun.kernel.sealing import Keyring
from nylorun.record.models import Idempotency

KEEP = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Key:
    """The key of one request. ``hashes`` are those its body may have been stored with; the first is stored now."""

    id: str
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """What the first request was answered."""

    status: int
    body: dict[str, Any]


def key_of(route: str, caller: Caller, path: str, key: str, hashes: tuple[str, ...]) -> Key:
    """The key ``key`` as this Caller sends it on the raw ``path`` of a route."""
    return Key(f"{route}:{caller.kind}:{caller.actor}:{path}:{key}", hashes)


def plain_hash(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The hash of a body that holds nothing secret."""
    return (f"sha256:{hashlib.sha256(canonical(dict(body)).encode()).hexdigest()}",)


def keyed_hashes(plaintext: bytes, ring: Keyring) -> tuple[str, ...]:
    """The hashes of a body that holds a value: under each key of the ring."""
    return tuple(f"hmac-sha256:{text}" for text in ring.fingerprints(plaintext))


def earlier(key: Key, ring: Keyring) -> Stored | None:
    """The stored answer, looked for without a lock; raises :class:`IdempotencyConflict` for another body."""
    row = Idempotency.objects.filter(pk=key.id).first()
    return None if row is None else _answer(row, key, ring)


def claim(tx: Tx, key: Key, ring: Keyring) -> Stored | None:
    """Take the key for this transaction, before any row lock; the stored answer when it is taken already."""
    tx.take(Rank.IDEMPOTENCY, key.id)
    row = Idempotency(id=key.id, body_hash=key.hashes[0], created_at=Now())
    Idempotency.objects.bulk_create([row], ignore_conflicts=True)
    found = Idempotency.objects.filter(pk=key.id).first()
    if found is None:
        raise StartOver  # the first one's row was removed for its age at this very moment
    return None if found.response is None else _answer(found, key, ring)


def keep(key: Key, ring: Keyring, status: int, body: Mapping[str, Any]) -> None:
    """Store the answer of a success, in the transaction that claimed the key."""
    sealed = ring.seal(json.dumps(dict(body)).encode(), _place(key.id))
    Idempotency.objects.filter(pk=key.id).update(status=status, response=bytes(sealed))


def remove_old(limit: int = 500) -> int:
    """Remove rows older than :data:`KEEP`; returns how many."""

    def work(tx: Tx) -> int:
        tx.take(Rank.IDEMPOTENCY, "")
        old = Idempotency.objects.filter(created_at__lt=database_now() - KEEP).order_by("created_at")
        ids = list(old.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True)[:limit])
        return Idempotency.objects.filter(pk__in=ids).delete()[0]

    return transact(work)


def _answer(row: Idempotency, key: Key, ring: Keyring) -> Stored:
    if row.body_hash not in key.hashes:
        raise IdempotencyConflict
    assert row.status is not None and row.response is not None  # noqa: S101, PT018 a committed row has its answer
    body: dict[str, Any] = json.loads(ring.open_sealed(bytes(row.response), _place(row.id)))
    return Stored(row.status, body)


def _place(id: str) -> dict[str, Any]:
    return {"table": "record_idempotency", "id": id}
