"""The SHA-256 of a file's apparent content, holes as zeros, while its data streams by."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from nylorun.blobs.entry import Entry, spans

ZEROS = bytes(1 << 20)
_AHEAD = 8


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
    """A thread that does what it is given, in order; at most eight things wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "blobs-hash")
        self._waiting: deque[Future[None]] = deque()

    def run(self, work: Callable[[bytes], None], data: bytes) -> None:
        """Do ``work(data)`` later."""
        if len(self._waiting) >= _AHEAD:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(work, data))

    def ask(self, work: Callable[[], bytes]) -> bytes:
        """The answer of ``work``, once everything before it is done."""
        answer = self._thread.submit(work)
        while self._waiting:
            self._waiting.popleft().result()
        return answer.result()

    def close(self) -> None:
        """Drop what waits and end the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)
