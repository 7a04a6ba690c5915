"""Long waits: at most half of a process's request threads wait, and none of them holds a database connection.

    with waiting():
        result = wait_for_the_machine()

The block may use the database for single looks; its connection goes back to the pool when the block is entered, and
each look inside should end with :func:`release`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from nylorun import config
from nylorun.kernel.errors import ServiceUnavailable


class _Room:
    """Counts who waits; made at the first wait, when the settings are known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0

    def enter(self, places: int) -> bool:
        """Take a place if one is free."""
        with self._lock:
            if self._waiting >= places:
                return False
            self._waiting += 1
            return True

    def leave(self) -> None:
        """Give the place back."""
        with self._lock:
            self._waiting -= 1

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return self._waiting


room = _Room()


@contextmanager
def waiting(*, connected: bool = False) -> Iterator[None]:
    """One place among the waiting calls of this process, without a database connection.

    ``connected`` keeps the connection for a statement that follows at once; the block releases it before it waits.
    Raises :class:`ServiceUnavailable` when all places are taken; an Operation is answered 202 instead (catch it).
    """
    if not room.enter(config.current().waiting_calls):
        raise ServiceUnavailable("Too many calls wait already. Try again.")
    try:
        if not connected:
            release()
        yield
    finally:
        room.leave()


def release() -> None:
    """Give this thread's database connection back to the pool; the next statement takes one again."""
    if not connection.in_atomic_block:
        connection.close()
