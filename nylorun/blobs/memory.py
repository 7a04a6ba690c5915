"""A store in this process's memory, for tests."""

from __future__ import annotations

from collections.abc import Iterator

from nylorun.blobs.errors import BlobMissing
from nylorun.blobs.store import StoredBlob, checked_key
from nylorun.kernel import clock


class MemoryStore:
    """Nothing is durable here but as long as the process lives. A dict's single operations are atomic."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[bytes, float]] = {}

    def put(self, key: str, data: bytes) -> None:
        self._held[checked_key(key)] = (bytes(data), clock.monotonic())

    def get(self, key: str) -> bytes:
        try:
            return self._held[checked_key(key)][0]
        except KeyError:
            raise BlobMissing(key) from None

    def has(self, key: str) -> bool:
        return checked_key(key) in self._held

    def delete(self, key: str) -> None:
        self._held.pop(checked_key(key), None)

    def list(self) -> Iterator[StoredBlob]:
        now = clock.monotonic()
        for key, (data, since) in list(self._held.items()):
            yield StoredBlob(key, len(data), now - since)

    def check(self) -> None:
        return None
