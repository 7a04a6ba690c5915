"""Holding a workspace to its disk limit while something writes into it.

Commands write through the kernel without asking us, so what this process hands to the kernel is counted from its own
counters. At the limit the largest file it may write becomes 0 bytes: writes fail as on a full disk, reads and
removals go on. As soon as a walk finds room again, writing works again.

A reader may rely on:
  * between two polls at most ``GRAIN`` bytes of room, at the speed ``FAST``, are written unseen;
  * ``take`` refuses before anything is kept; ``poll`` never raises and says whether far too much is there by now.
Sizes are bytes, times seconds.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterable, Iterator

from environments.compute.engine.wire import ToolError
from environments.compute.virtual.ledger import ENTRY, Ledger

FAST = 1 << 31  # bytes a second that a command may write at most, for the time between two looks
SHORTEST, LONGEST = 0.005, 0.25
MANY_ENTRIES = 10_000


class Meter:
    """The limit of one workspace, as one of its processes holds it."""

    def __init__(self, ledger: Ledger, tree: int, counters: int | None) -> None:
        self._ledger = ledger
        self._tree = tree
        self._counters = counters
        self._limit = 0
        self._mark = 0
        self._free_entries = 0
        self._found = 0
        self._lock = threading.Lock()

    def begin(self, limit: int) -> None:
        """A command starts that may write up to ``limit`` in the whole workspace."""
        self._limit = limit
        self._mark = self._handed_over()
        self._free_entries = os.fstatvfs(self._tree).f_ffree
        self._found = self._ledger.used()
        self.poll()

    def poll(self) -> bool:
        """Count what was written; opens or shuts the way to the disk. True: far over the limit."""
        with self._lock:
            return self._poll()

    def _poll(self) -> bool:
        handed_over = self._handed_over()
        self._ledger.add(handed_over - self._mark)
        self._mark = handed_over
        used = self._ledger.used()
        if used >= self._limit or self._many_made():
            self._let(0)
            used = self._ledger.measure()
        self._let(self._limit if used < self._limit else 0)
        # What was there before this command is not its doing: it may still read, and remove.
        return used > max(self._limit, self._found) + self._limit // 4 + (ENTRY << 10)

    def pause(self) -> float:
        """How long until the next poll: shorter the less room there is."""
        room = max(0, self._limit - self._ledger.used())
        return min(LONGEST, max(SHORTEST, room / FAST))

    def end(self) -> None:
        """The command is over: count the rest, and let the file tools write."""
        self.poll()
        self._let(resource.RLIM_INFINITY)

    def take(self, content: Iterable[bytes], limit: int) -> Iterator[bytes]:
        """Pass ``content`` on; raises ``tool.no_space`` when the workspace would grow beyond ``limit``.

        What was passed on has no name in the tree before ``settle``.
        """
        if limit - self._ledger.used() < ENTRY and limit - self._ledger.measure() < ENTRY:
            raise _full()
        size = 0
        for part in content:
            if len(part) > limit - self._ledger.used() and len(part) > limit - self._ledger.measure():
                raise _full()
            self._ledger.hold(len(part))  # at once: others that write at this moment count it too
            size += len(part)
            yield part
        self._ledger.add(max(0, ENTRY - size))

    def emptied(self) -> None:
        """The workspace was emptied: what was counted is gone."""
        self._ledger.measure()

    def charge(self, size: int, limit: int) -> None:
        """Count an entry with ``size`` bytes of data before it is made; raises ``tool.no_space`` beyond ``limit``."""
        self._ledger.add(max(1, -(-size // ENTRY)) * ENTRY)
        if self._ledger.used() > limit:
            raise _full()

    def settle(self) -> None:
        """The write that took its content is over."""
        self._ledger.settle()

    def _many_made(self) -> bool:
        """Whether so many files were made, by whomever, that empty ones may count."""
        free = os.fstatvfs(self._tree).f_ffree
        if self._free_entries - free < MANY_ENTRIES:
            return False
        self._free_entries = free
        return True

    def _handed_over(self) -> int:
        if self._counters is None:
            return resource.getrusage(resource.RUSAGE_SELF).ru_oublock * 512
        for line in os.pread(self._counters, 1024, 0).splitlines():
            name, _, value = line.partition(b": ")
            if name == b"wchar":
                return int(value)
        return self._mark

    @staticmethod
    def _let(most: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if most == resource.RLIM_INFINITY else most, hard))


def _full() -> ToolError:
    return ToolError("tool.no_space", "The workspace is full.")
