"""Removing trees that somebody hostile made, and may still be changing.

A reader may rely on:
  * links are removed, never followed; every step is relative to a folder handle reached beneath the start;
  * depth does not matter: folders deeper than ``MAX_DEPTH`` are first moved up beside the start, so neither handles nor
    path lengths run out;
  * with ``force``, folders their owner closed to himself (mode 0000) are opened again;
  * the count covers everything removed, the start included. What cannot be removed, or is filled again ``PASSES``
    times, raises ``OSError``;
  * memory and handles do not grow with the tree.
"""

from __future__ import annotations

import errno
import os
import stat

MAX_DEPTH = 100
PASSES = 16
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(parent: int, name: str, *, force: bool = False) -> int:
    """Remove ``name`` in the folder ``parent`` with everything beneath it."""
    return _Removal(parent, force=force).run(name)


def empty_folder(folder: int) -> None:
    """Remove everything beneath the folder (a handle), closed folders too, and leave the folder itself."""
    for _ in range(PASSES):
        found = False
        with os.scandir(folder) as entries:
            for entry in entries:
                found = True
                remove_tree(folder, entry.name, force=True)
        if not found:
            return
    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))


class _Level:
    """A folder being emptied: its handle, the names still to do, and its own name in the level above."""

    __slots__ = ("_passes", "handle", "name", "names")

    def __init__(self, handle: int, name: str) -> None:
        self.handle = handle
        self.name = name
        self._passes = 0
        self.names = os.scandir(handle)

    def again(self) -> bool:
        """Read the folder once more: while it was read somebody may have filled it. ``False``: often enough."""
        self._passes += 1
        self.names.close()
        self.names = os.scandir(self.handle)
        return self._passes < PASSES

    def close(self) -> None:
        self.names.close()
        os.close(self.handle)


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
                level.close()

    def _work(self, levels: list[_Level]) -> None:
        """One step on the deepest level: remove a name, go down into it, or leave an emptied level."""
        level = levels[-1]
        entry = next(level.names, None)
        if entry is not None:
            self._take(levels, level, entry.name)
            return
        above = levels[-2].handle if len(levels) > 1 else self._parent
        try:
            os.rmdir(level.name, dir_fd=above)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY and level.again():
                return
            raise
        self._count += 1
        levels.pop().close()

    def _take(self, levels: list[_Level], level: _Level, name: str) -> None:
        if self._unlink(level.handle, name):
            return
        if len(levels) < MAX_DEPTH:
            levels.append(self._open(level.handle, name))
            return
        if self._force:
            open_up(level.handle, name)  # a folder that may not be written to cannot be moved
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
            set_mode(handle, folder, name, stat.S_IRWXU)
    finally:
        os.close(handle)


def set_mode(look: int, folder: int, name: bytes | str, mode: int) -> None:
    """Change the mode of what ``look``, an ``O_PATH`` handle of ``name`` in ``folder``, shows.

    Such a handle has no fchmod of its own; its name under /proc stands for this very file. Where there is no /proc,
    the root folder is the workspace's own (see ``virtual/cage``), so that a link in the name's place leads nowhere.
    """
    try:
        os.chmod(f"/proc/self/fd/{look}", mode)
    except FileNotFoundError:
        os.chmod(name, mode, dir_fd=folder)
