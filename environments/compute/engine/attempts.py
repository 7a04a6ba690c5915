"""Which attempt of which copy may work on a disk: one at a time, and never again one that another has followed.

A copy is named by its Operation. Its process may have slept past its lease while the Operation was tried again; what it
still runs here is ended before the next attempt begins, and what it still sends is refused.

A reader may rely on: calls of one attempt run side by side; ``enter`` returns when no call of another one is left.
"""

from __future__ import annotations

import time
from _thread import allocate_lock

from environments.compute.engine.wire import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

REMEMBERED = 64
ENDING_SECONDS = 20.0
POLL = 0.005


class Attempts:
    """The attempts on one disk. Every method may be called by any thread."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._seen: dict[str, int] = {}
        self._now = ("", 0)
        self._running: dict[object, tuple[tuple[str, int], Callable[[], None]]] = {}

    def enter(self, copy: str, attempt: int, end: Callable[[], None]) -> object:
        """Begin a call of an attempt; ``end`` makes it end soon. Gives what ``leave`` wants.

        Raises :class:`Refused`: ``stale`` for an attempt that another followed, ``busy`` when that other's calls, or
        the followed one's, do not end.
        """
        token = object()
        with self._lock:
            self._follow(copy, attempt)
            self._running[token] = ((copy, attempt), end)
            others = [ending for who, ending in self._running.values() if who != (copy, attempt)]
            for ending in others:
                ending()
        if others:
            self._wait(token, (copy, attempt))
        return token

    def leave(self, token: object) -> None:
        """A call is over."""
        with self._lock:
            self._running.pop(token, None)

    def _follow(self, copy: str, attempt: int) -> None:
        if self._now == (copy, attempt):
            return
        if attempt <= self._seen.get(copy, 0):
            raise Refused("stale", "Another attempt has followed this one.")
        self._now = (copy, attempt)
        self._seen.pop(copy, None)
        self._seen[copy] = attempt
        while len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _wait(self, token: object, attempt: tuple[str, int]) -> None:
        deadline = time.monotonic() + ENDING_SECONDS
        while True:
            with self._lock:
                left = any(who != attempt for who, _ in self._running.values())
                followed = self._now != attempt
                if followed or (left and time.monotonic() >= deadline):
                    del self._running[token]
                    raise Refused("stale" if followed else "busy", "Calls of another attempt run.")
            if not left:
                return
            time.sleep(POLL)  # noqa: TID251 - a lock with a time limit would need the module threading
