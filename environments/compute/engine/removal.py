"""Removing trees that somebody hostile made, and may still be changing.

A reader may rely on:
  * links are removed, never followed; every step is relative to a folder handle reached beneath the start;
  * depth does not matter: folders deeper than ``MAX_DEPTH`` are first moved up beside the start, so neither handles nor
    path lengths run out;
  * with ``force``, folders their owner closed to himself (mode 0000) are opened again;
  * the count covers everything removed, the start included. What cannot be removed raises ``OSError``.
"""

from __future__ import annotations

import os
import stat

MAX_DEPTH = 100
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(parent: int, name: str, *, force: bool = False) -> int:
    """Remove ``name`` in the folder ``parent`` with everything beneath it."""
    return _Removal(parent, force=force).run(name)


class _Level:
    """A folder being emptied: its handle, the names still to do, and its own name in the level above."""

    __slots__ = ("handle", "name", "names")

    def __init__(self, handle: int, name: str) -> None:
        self.handle = handle
        self.name = name
        with os.scandir(handle) as entries:
            self.names = [entry.name for entry in entries]


class _Removal:
    def __init__(self, parent: int, *, force: bool) -> None:
        self._parent = parent
        self._force = force
        self._count = 0
        self._moved_up = 0
        self._later: list[str] = []

    def run(self, name: str) -> int:
        self._later.append(name)
        while self._later:
            self._remove(self._later.pop())
        return self._count

    def _remove(self, name: str) -> None:
        if self._unlink(self._parent, name):
            return
        levels = [self._open(self._parent, name)]
        try:
            while levels:
                self._work(levels)
        finally:
            for level in levels:
                os.close(level.handle)

    def _work(self, levels: list[_Level]) -> None:
        """One step on the deepest level: remove a name, go down into it, or leave an emptied level."""
        level = levels[-1]
        if level.names:
            self._take(levels, level, level.names.pop())
            return
        above = levels[-2].handle if len(levels) > 1 else self._parent
        os.rmdir(level.name, dir_fd=above)
        self._count += 1
        os.close(levels.pop().handle)

    def _take(self, levels: list[_Level], level: _Level, name: str) -> None:
        if self._unlink(level.handle, name):
            return
        if len(levels) < MAX_DEPTH:
            levels.append(self._open(level.handle, name))
            return
        self._moved_up += 1
        shallow = f".nylorun-{os.getpid()}-{os.urandom(6).hex()}-{self._moved_up}"
        os.rename(name, shallow, src_dir_fd=level.handle, dst_dir_fd=self._parent)
        self._later.append(shallow)

    def _unlink(self, folder: int, name: str) -> bool:
        """Remove what is not a folder; ``False`` says it is one."""
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                return False
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return True
        self._count += 1
        return True

    def _open(self, folder: int, name: str) -> _Level:
        if self._force:
            open_up(folder, name)
        handle = os.open(name, FOLDER, dir_fd=folder)
        try:
            return _Level(handle, name)
        except OSError:
            os.close(handle)
            raise


def open_up(folder: int, name: str) -> None:
    """Give the owner back his rights on a folder; a link in its place is left alone."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
            # A handle of O_PATH has no fchmod of its own; its name under /proc stands for this very folder.
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
    finally:
        os.close(handle)
