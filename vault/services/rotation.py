"""Rotation of the keyring: every sealed thing's data key is wrapped again by the active key; ciphertexts stay.

* :data:`PLACES` are all columns of this installation that hold something sealed.
* One row is one commit, compared with what was read: a row that was written meanwhile was sealed by its writer and is
  left alone. So a run may be interrupted at any moment and goes on where it stopped, beside a running platform.
* Only the part before the ciphertext is read and sent back: what a batch costs does not grow with what is sealed.
* A row that no key of the ring opens is counted, left as it is and does not stop the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django.db import connection

from nylorun.access import keyring
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact
from nylorun.kernel.sealing import HEAD, Sealed, Unreadable


class Place(Protocol):
    """One table with something sealed in it; rows are named by the text of their key and met in its order."""

    @property
    def table(self) -> str:
        """Its name."""

    def waiting(self, active: str, after: str, limit: int) -> list[tuple[str, bytes | Sealed]]:
        """Rows that another key than ``active`` wrapped, behind the key ``after``, without ciphertexts."""

    def replace(self, tx: Tx, key: str, old: bytes | Sealed, new: Sealed) -> bool:
        """Write the row while it is as it was read."""

    def kek_ids(self) -> Counter[str]:
        """How many rows each key has wrapped."""


@dataclass(frozen=True, slots=True)
class BlobPlace:
    """Sealed values in one column each: format byte, key id, nonce, wrapped key, ciphertext."""

    table: str
    key: str
    column: str
    rank: Rank

    def waiting(self, active: str, after: str, limit: int) -> list[tuple[str, bytes | Sealed]]:
        rows = _rows(
            f'SELECT "{self.key}"::text COLLATE "C", {self._head} FROM {self.table}'  # noqa: S608 names of ours
            f" WHERE substring({self.column} FROM 2 FOR 32) <> %s"
            f' AND "{self.key}"::text COLLATE "C" > %s ORDER BY 1 LIMIT %s',
            [bytes.fromhex(active), after, limit],
        )
        return [(key, bytes(head)) for key, head in rows]

    def replace(self, tx: Tx, key: str, old: bytes | Sealed, new: Sealed) -> bool:
        tx.take(self.rank, key)
        return _changed(
            f"UPDATE {self.table} SET {self.column} = %s || substring({self.column} FROM {HEAD + 1})"  # noqa: S608 ours
            f' WHERE "{self.key}"::text = %s AND {self._head} = %s',
            [bytes(new), key, bytes(old)],
        )

    @property
    def _head(self) -> str:
        return f"substring({self.column} FROM 1 FOR {HEAD})"

    def kek_ids(self) -> Counter[str]:
        return _counted(
            f"SELECT encode(substring({self.column} FROM 2 FOR 32), 'hex'), count(*) FROM {self.table}"  # noqa: S608 ours
            f" WHERE {self.column} IS NOT NULL GROUP BY 1"
        )


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """The Secrets: their sealed parts are columns of their own."""

    table: str = "vault_secret"

    def waiting(self, active: str, after: str, limit: int) -> list[tuple[str, bytes | Sealed]]:
        rows = _rows(
            "SELECT id::text, kek_id, nonce, wrapped_dek FROM vault_secret"
            " WHERE kek_id <> %s AND id::text > %s ORDER BY id::text LIMIT %s",
            [active, after, limit],
        )
        return [(key, Sealed(kek, bytes(nonce), bytes(dek), b"")) for key, kek, nonce, dek in rows]

    def replace(self, tx: Tx, key: str, old: bytes | Sealed, new: Sealed) -> bool:
        assert isinstance(old, Sealed)  # noqa: S101 from this class
        tx.take(Rank.VAULT, key)
        return _changed(
            "UPDATE vault_secret SET kek_id = %s, wrapped_dek = %s WHERE id = %s::uuid AND wrapped_dek = %s",
            [new.kek_id, new.wrapped_dek, key, old.wrapped_dek],
        )

    def kek_ids(self) -> Counter[str]:
        return _counted("SELECT kek_id, count(*) FROM vault_secret GROUP BY 1")


PLACES: Sequence[Place] = (
    SecretPlace(),
    BlobPlace("record_idempotency", "id", "response", Rank.IDEMPOTENCY),
    BlobPlace("environments_effect", "id", "answer", Rank.EFFECT),
    BlobPlace("access_signing_key", "kid", "sealed_private", Rank.EFFECT),
    BlobPlace("access_keyring_canary", "only", "sealed", Rank.EFFECT),
    BlobPlace("vault_gate_authority", "only", "sealed_key", Rank.EFFECT),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch of a place did."""

    table: str
    rewrapped: int
    unreadable: int


def rewrap_all(batch: int) -> Iterator[Batch]:
    """Rewrap place by place; what each batch did, as it is done."""
    for place in PLACES:
        after = ""
        while rows := place.waiting(keyring.current().active, after, batch):
            after = rows[-1][0]
            done = Counter(_rewrap(place, key, old) for key, old in rows)
            yield Batch(place.table, done["rewrapped"], done["unreadable"])


def kek_ids_in_use() -> dict[str, Counter[str]]:
    """Every key that wraps anything, with the number of rows by table."""
    used: dict[str, Counter[str]] = {}
    for place in PLACES:
        for kek_id, count in place.kek_ids().items():
            used.setdefault(kek_id, Counter())[place.table] = count
    return used


def _rewrap(place: Place, key: str, old: bytes | Sealed) -> str:
    try:
        new = keyring.current().rewrap(old if isinstance(old, Sealed) else Sealed.parse_head(old))
    except Unreadable:
        return "unreadable"
    return "rewrapped" if transact(lambda tx: place.replace(tx, key, old, new)) else "moved"


def _rows(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def _changed(sql: str, values: Sequence[Any]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return bool(cursor.rowcount)


def _counted(sql: str) -> Counter[str]:
    return Counter({str(kek_id): int(count) for kek_id, count in _rows(sql, [])})
