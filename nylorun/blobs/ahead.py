"""Reading blobs before they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from nylorun.blobs.entry import Ref

T = TypeVar("T")
Wanted = tuple[T, Ref | None]
Plan = Generator[Wanted[T], None, None]
Fetched = tuple[T, bytes]
Load = Callable[[str, int], bytes]

BYTES = 10 << 20
"""How much is read ahead at most; one blob more than that may be held."""
ITEMS = 512
THREADS = 4

_NOTHING: Future[bytes] = Future()
_NOTHING.set_result(b"")


def fetch_ahead(load: Load, wanted: Plan[T]) -> Iterator[Fetched[T]]:
    """What is ``wanted``, in its order, each with the whole content of its blob (``b""`` without one).

    ``load(blob, size)`` is called by four threads, once for neighbours of the same blob; what it raises is raised where
    its blob is due. ``wanted`` is taken a bounded way ahead, and closed. Closing the iterator ends the threads.
    """
    due: deque[tuple[T, Future[bytes], int]] = deque()
    threads = ThreadPoolExecutor(THREADS, "blobs-get")
    held, last, last_load, more = 0, "", _NOTHING, True
    try:
        while True:
            while more and held < BYTES and len(due) < ITEMS:
                item = next(wanted, None)
                if item is None:
                    more = False
                    break
                mine, ref = item
                if ref is None:
                    due.append((mine, _NOTHING, 0))
                elif ref.blob == last:
                    due.append((mine, last_load, 0))
                else:
                    last, last_load = ref.blob, threads.submit(load, ref.blob, ref.size)
                    due.append((mine, last_load, ref.size))
                    held += ref.size
            if not due:
                return
            mine, loaded, size = due.popleft()
            held -= size
            yield mine, loaded.result()
    finally:
        wanted.close()
        threads.shutdown(wait=True, cancel_futures=True)
