"""How many bytes a workspace holds, known without reading its tree at every call.

One page of memory per workspace is shared by the processes that serve it. It holds what the last walk of the tree
found and, per process, what that process has written since it began, and what it holds in a file without a name, which
no walk finds. The sum is never less than the truth but for writes of the last moment: what is removed counts until the
next walk, which is made when the sum reaches the limit.

A reader may rely on:
  * a file or folder counts as its blocks, at least ``ENTRY``; hard links once; holes not at all;
  * a tree too deep to be walked counts as full;
  * ``Ledger`` is used by one thread of a process; ``slot`` belongs to that process alone. What a process that died held
    without a name is gone with it: whoever gives its slot away calls ``let_go``.
Sizes are bytes.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator

ENTRY = 4096
PAGE = 4096
SLOTS = (PAGE // 8 - 1) // 2
_UNKNOWN = -(1 << 62)
_FULL = 1 << 62


def make() -> int:
    """A new page, nothing known yet; the caller closes the handle."""
    handle = os.memfd_create("ledger", os.MFD_CLOEXEC)
    os.ftruncate(handle, PAGE)
    forget(handle)
    return handle


def forget(handle: int) -> None:
    """Nothing is known any more: another tree is in the workspace's place."""
    os.pwrite(handle, _UNKNOWN.to_bytes(8, "little", signed=True), 0)


def let_go(handle: int, slot: int) -> None:
    """Count no more what the process of ``slot``, which has died or holds nothing, held without a name."""
    os.pwrite(handle, bytes(8), 8 * (1 + SLOTS + slot))


class Ledger:
    """The shared page as one process sees it."""

    def __init__(self, handle: int, slot: int, tree: int) -> None:
        self._cells = memoryview(mmap.mmap(handle, PAGE)).cast("q")
        self._slot = 1 + slot
        self._unnamed = 1 + SLOTS + slot
        self._tree = tree

    def used(self) -> int:
        """Bytes in the workspace now; walks the tree when nothing is known."""
        if self._cells[0] == _UNKNOWN:
            self.measure()
        return self._sum()

    def add(self, size: int) -> None:
        """Count ``size`` more bytes as written by this process."""
        self._cells[self._slot] += size

    def hold(self, size: int) -> None:
        """Count ``size`` more bytes as held by this process in a file without a name."""
        self._cells[self._unnamed] += size

    def settle(self) -> None:
        """What this process held has a name by now, or is gone; it counts as written until the next walk."""
        self.add(self._cells[self._unnamed])
        self._cells[self._unnamed] = 0

    def measure(self) -> int:
        """Walk the tree; what is written meanwhile may be counted twice, never not at all."""
        before = self._written()
        self._cells[0] = measured(self._tree) - before
        return self._sum()

    def _sum(self) -> int:
        return self._cells[0] + sum(self._cells[1:])

    def _written(self) -> int:
        return sum(self._cells[1 : 1 + SLOTS])


def measured(tree: int) -> int:
    """Walk the folder ``tree`` (a handle) and add up what it holds."""
    linked: set[tuple[int, int]] = set()
    total = 0
    try:
        for status in _walk(tree):
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                key = (status.st_dev, status.st_ino)
                if key in linked:
                    continue
                linked.add(key)
            total += max(ENTRY, status.st_blocks * 512)
    except OSError:  # no handle left for the next level
        return _FULL
    return total


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level:
    """A folder being walked. One that its owner closed to himself is opened, and closed again afterwards."""

    def __init__(self, handle: int, closed_mode: int | None = None) -> None:
        self.handle = handle
        self._closed_mode = closed_mode
        self.names = os.scandir(handle)

    def close(self) -> None:
        self.names.close()
        if self._closed_mode is not None:
            os.fchmod(self.handle, self._closed_mode)
        os.close(self.handle)


def _walk(tree: int) -> Iterator[os.stat_result]:
    """The status of everything beneath ``tree``; links are looked at, not followed."""
    levels = [_Level(os.dup(tree))]
    try:
        while levels:
            entry = next(levels[-1].names, None)
            if entry is None:
                levels.pop().close()
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    levels.append(_go_down(levels[-1].handle, entry.name, stat.S_IMODE(status.st_mode)))
            except (FileNotFoundError, NotADirectoryError):  # removed meanwhile, or another thing by now
                continue
            yield status
    finally:
        for level in reversed(levels):
            level.close()


def _go_down(parent: int, name: str, mode: int) -> _Level:
    if mode & 0o500 == 0o500:
        return _Level(os.open(name, _FOLDER, dir_fd=parent))
    os.chmod(name, mode | 0o700, dir_fd=parent)
    return _Level(os.open(name, _FOLDER, dir_fd=parent), closed_mode=mode)
