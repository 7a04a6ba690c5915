"""A store: immutable bytes by key. What every store promises, and how one is made from a URL.

A key is 64 lower-case hex digits; any other is a ``ValueError``, so no key can leave a store's folder. Every failure of
infrastructure is :class:`StoreUnavailable`; "missing" is said only by a store that answered. All methods may be called
from several threads and several processes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One stored object: ``size`` in bytes as stored, ``age_seconds`` since it was last put."""

    key: str
    size: int
    age_seconds: float


class Store(Protocol):
    """Bytes by key."""

    def put(self, key: str, data: bytes) -> None:
        """Store ``data``, durably when this returns, all of it or nothing. Putting a key again is harmless."""

    def get(self, key: str) -> bytes:
        """The bytes; raises ``BlobMissing``."""

    def has(self, key: str) -> bool:
        """Whether the key is stored, durably."""

    def delete(self, key: str) -> None:
        """Remove the key; a missing one succeeds."""

    def list(self) -> Iterator[StoredBlob]:
        """Everything stored, in no order. What is put or deleted meanwhile may or may not be among it."""

    def check(self) -> None:
        """Raises ``StoreUnavailable`` with the reason when the store cannot be used."""


_HEX = frozenset("0123456789abcdef")


def checked_key(key: str) -> str:
    """``key`` when it is one, else ``ValueError``."""
    if len(key) != 64 or not _HEX.issuperset(key):
        raise ValueError(f"A blob's key has 64 lower-case hex digits, not {key[:80]!r}.")
    return key
