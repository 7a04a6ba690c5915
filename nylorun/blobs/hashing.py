"""The SHA-256 of a file's apparent content, holes as zeros, while its data streams by."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from nylorun.blobs.blob import digest
from nylorun.blobs.entry import Entry, spans

T = TypeVar("T")

ZEROS = bytes(1 << 20)
_AHEAD = 3


class FileHash:
    """Takes the data of the extents in order; :meth:`digest` fails on nothing but what a caller must have checked."""

    def __init__(self, entry: Entry) -> None:
        self._hash = hashlib.sha256()
        self._whole = entry.extents is None
        self._spans = iter(spans(entry))
        self._left = 0

    def update(self, data: bytes) -> None:
        """The next data, any number of bytes."""
        if self._whole:
            self._hash.update(data)
            return
        view = memoryview(data)
        while view:
            if not self._left:
                self._left = self._next_data()
            part = view[: self._left]
            self._hash.update(part)
            self._left -= len(part)
            view = view[len(part) :]

    def take(self, data: bytes) -> bytes:
        """The next data, which is a blob; returns its name."""
        self.update(data)
        return digest(data)

    def digest(self) -> bytes:
        """The 32 bytes, once all data was given."""
        if not self._whole:
            self._next_data()
        return self._hash.digest()

    def _next_data(self) -> int:
        """Hashes the holes up to the next data, and returns its length."""
        for at, length in self._spans:
            if at is not None:
                return length
            self._zeros(length)
        return 0

    def _zeros(self, length: int) -> None:
        view = memoryview(ZEROS)
        while length:
            part = view[:length]
            self._hash.update(part)
            length -= len(part)


def hash_of(entry: Entry, data: bytes) -> bytes:
    """The 32 bytes for a file whose data is at hand."""
    if entry.extents is None:
        return hashlib.sha256(data).digest()
    content = FileHash(entry)
    content.update(data)
    return content.digest()


class Lane:
    """A thread that works on what streams by, while the caller makes more of it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "blobs-hash")

    def run(self, work: Callable[[bytes], T], pieces: Iterable[bytes]) -> Iterator[tuple[bytes, T]]:
        """Each piece with ``work(piece)``, in order; at most three pieces wait."""
        due: deque[tuple[bytes, Future[T]]] = deque()
        for piece in pieces:
            due.append((piece, self._thread.submit(work, piece)))
            if len(due) > _AHEAD:
                done, result = due.popleft()
                yield done, result.result()
        for done, result in due:
            yield done, result.result()

    def close(self) -> None:
        """Drop what waits and end the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)
