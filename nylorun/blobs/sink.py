"""Where new blobs go: named, claimed in batches, then compressed and stored by a few threads.

Order is the promise of this file: a blob is claimed before the store is asked for it or given it. Batches hold at most
3 MiB, and 6 MiB may be on their way to the store, so memory is bounded whatever the size of a disk. The claim is
made in the caller's thread, between two batches, or ``aside`` in a thread that claims one batch after the other; the
other threads store the batch before meanwhile.

After a failure (of the claim or of the store) nothing is begun any more: what raises here has waited for what was
already under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from nylorun.blobs.blob import digest, put_healed, put_missing
from nylorun.blobs.store import Store

Claim = Callable[[list[tuple[str, int]]], None]

THREADS = 4
BATCH_BYTES, BATCH_BLOBS = 3 << 20, 1000
UNDER_WAY = 6 << 20
_CLOSED = "This writer was closed or has failed: begin again."


class Sink:
    """Blobs by number: a number is known at once, a name when the content is."""

    def __init__(
        self, store: Store, claim: Claim, known: Iterable[bytes] = (), *, heal: bool = False, aside: bool = False
    ) -> None:
        self._store = store
        self._put = put_healed if heal else put_missing
        self._claim = claim
        self._stored = set(known)
        self._claimed: dict[bytes, int] = {}
        self._blobs: list[tuple[bytes, int]] = []
        self._batch: list[tuple[bytes, int, bytes | None]] = []
        self._bytes = 0
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._under_way_bytes = 0
        self._threads = ThreadPoolExecutor(THREADS, "blobs-put")
        self._claimer = ThreadPoolExecutor(1, "blobs-claim") if aside else None
        self._claiming: Future[None] | None = None
        self._open = True

    def know(self, names: Iterable[bytes]) -> None:
        """These blobs are stored and whole: they are claimed and not looked at."""
        self._stored.update(names)

    def reserve(self) -> int:
        """The number of a blob whose content comes later."""
        self._blobs.append((b"", 0))
        return len(self._blobs) - 1

    def fill(self, number: int, data: bytes, name: bytes | None = None) -> None:
        """The content of a reserved number; ``name`` is its digest when the caller has it."""
        name = digest(data) if name is None else name
        self._blobs[number] = (name, len(data))
        self._take(name, len(data), data)

    def add(self, data: bytes, name: bytes | None = None) -> int:
        """The number of a blob with this content, which is called ``name`` when the caller knows that."""
        number = self.reserve()
        self.fill(number, data, name)
        return number

    def claim(self, name: bytes, size: int) -> None:
        """Claim a blob that the caller knows to be stored."""
        self._take(name, size, None)

    def blob(self, number: int) -> tuple[bytes, int]:
        """The name and size of a filled number."""
        return self._blobs[number]

    def count(self) -> int:
        """How many numbers were given."""
        return len(self._blobs)

    def names(self) -> Iterator[bytes]:
        """Everything that was claimed or is about to be."""
        return iter(self._claimed)

    def settle(self) -> None:
        """Returns when everything that was added is claimed and durable."""
        self._flush()
        with self._stopping():
            self._wait_for_claim()
            self._wait_until_under_way(0)

    def require_open(self) -> None:
        """Raises ``RuntimeError`` once the sink is closed."""
        if not self._open:
            raise RuntimeError(_CLOSED)

    def close(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self._open = False
        if self._claimer is not None:
            self._claimer.shutdown(wait=True, cancel_futures=True)
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._batch.clear()
        self._under_way.clear()

    def _take(self, name: bytes, size: int, data: bytes | None) -> None:
        if name in self._claimed:
            return
        self._claimed[name] = size
        stored = name in self._stored
        self._batch.append((name, size, None if stored else data))
        self._bytes += 0 if stored or data is None else size
        if self._bytes >= BATCH_BYTES or len(self._batch) >= BATCH_BLOBS:
            self._flush()

    def _flush(self) -> None:
        with self._stopping():
            batch, self._batch, self._bytes = self._batch, [], 0
            self._wait_for_claim()
            if batch and self._claimer is not None:
                self._claiming = self._claimer.submit(self._begin, batch)
            elif batch:
                self._begin(batch)

    def _wait_for_claim(self) -> None:
        """Returns when the batch before this one is claimed and its blobs are on their way; raises what it raised."""
        claiming, self._claiming = self._claiming, None
        if claiming is not None:
            claiming.result()

    def _begin(self, batch: list[tuple[bytes, int, bytes | None]]) -> None:
        self._claim([(name.hex(), size) for name, size, _ in batch])
        for name, size, data in batch:
            if data is not None:
                self._wait_until_under_way(max(UNDER_WAY - size, 0))
                stored = self._threads.submit(self._put, self._store, name.hex(), data)
                self._under_way.append((stored, size))
                self._under_way_bytes += size

    def _wait_until_under_way(self, limit: int) -> None:
        while self._under_way and (self._under_way_bytes > limit or self._under_way[0][0].done()):
            stored, size = self._under_way.popleft()
            stored.result()
            self._under_way_bytes -= size

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        self.require_open()
        try:
            yield
        except BaseException:
            self.close()
            raise
