"""Going through a tree by handles, folder by folder, however deep it is and whatever its owner does to it meanwhile.

Each step opens one name relative to a folder that was itself reached beneath the root, with ``O_NOFOLLOW``: links are
not followed, and no path is given to the kernel that could be too long for it.

A reader may rely on:
  * at most ``OPEN`` handles are open; folders further up are opened again on the way back, by their name ``..`` when
    that still is the same folder, else by their names from the root;
  * a folder that its owner closed to himself (mode 0000) is opened, and gets its mode back when the walk leaves it; a
    process that dies within it leaves it open;
  * memory grows by some 150 bytes a level.
"""

from __future__ import annotations

import errno
import os
import stat

from environments.compute.engine.removal import FOLDER, set_mode

LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN = 32
_ENTER = 0o500


class _Step:
    """A folder on the way; ``start`` is how long the prefix was above it, ``mode`` what it gets back."""

    __slots__ = ("handle", "identity", "mode", "start")

    def __init__(self, handle: int, identity: int, mode: int | None, start: int) -> None:
        self.handle: int | None = handle
        self.identity = identity
        self.mode = mode
        self.start = start


class Descent:
    """Where a walk stands. ``prefix`` is the folder's path with a ``/`` at its end, empty for the root."""

    def __init__(self, root: int) -> None:
        self._root = os.dup(root)
        self._steps: list[_Step] = []
        self.prefix = b""

    @property
    def handle(self) -> int:
        """The folder's handle; ``FileNotFoundError`` when it was moved away while the walk was beneath it."""
        handle = self._steps[-1].handle if self._steps else self._root
        if handle is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return handle

    def down(self, name: bytes) -> int:
        """Enter a folder of this one; gives its handle. Raises ``OSError``, and stays where it is."""
        handle, status, mode = enter(self.handle, name)
        self._steps.append(_Step(handle, status.st_ino, mode, len(self.prefix)))
        self.prefix = b"%b%b/" % (self.prefix, name)
        if len(self._steps) > OPEN:
            far = self._steps[-OPEN - 1]
            if far.handle is not None:
                os.close(far.handle)
                far.handle = None
        return handle

    def up(self) -> None:
        """Leave this folder for the one above it, which may be lost (see ``handle``)."""
        step = self._steps.pop()
        self.prefix = self.prefix[: step.start]
        if self._steps and self._steps[-1].handle is None:
            self._steps[-1].handle = self._again(step.handle, self._steps[-1].identity)
        if step.handle is not None:
            if step.mode is not None:
                os.fchmod(step.handle, step.mode)
            os.close(step.handle)

    def go(self, folder: bytes) -> int:
        """Go to the folder of that path and give its handle; raises ``OSError``."""
        wanted = folder + b"/" if folder else b""
        while not wanted.startswith(self.prefix):
            self.up()
        while len(self.prefix) < len(wanted):
            start = len(self.prefix)
            self.down(wanted[start : wanted.index(b"/", start)])
        return self.handle

    def close(self) -> None:
        """Leave everything and close the root's handle."""
        while self._steps:
            self.up()
        os.close(self._root)

    def _again(self, below: int | None, identity: int) -> int | None:
        """A new handle of the folder above ``below``."""
        if below is not None:
            handle = _open(below, b"..", identity)
            if handle is not None:
                return handle
        return self._from_the_root(identity)

    def _from_the_root(self, identity: int) -> int | None:
        names = self.prefix.split(b"/")[:-1]
        here: int | None = os.dup(self._root)
        for number, name in enumerate(names, 1):
            above, here = here, None
            if above is not None:
                here = _open(above, name, identity if number == len(names) else None)
                os.close(above)
        return here


def _open(folder: int, name: bytes, identity: int | None) -> int | None:
    try:
        handle = os.open(name, FOLDER, dir_fd=folder)
    except OSError:
        return None
    if identity is not None and os.fstat(handle).st_ino != identity:
        os.close(handle)
        return None
    return handle


def enter(folder: int, name: bytes) -> tuple[int, os.stat_result, int | None]:
    """Open a folder that can be read and entered: handle, status, and the mode to give back when it was closed."""
    try:
        handle = os.open(name, FOLDER, dir_fd=folder)
    except PermissionError:
        return _force(folder, name)
    status = os.fstat(handle)
    if status.st_mode & _ENTER == _ENTER:
        return handle, status, None
    os.close(handle)
    return _force(folder, name)


def _force(folder: int, name: bytes) -> tuple[int, os.stat_result, int]:
    look = os.open(name, LOOK | os.O_DIRECTORY, dir_fd=folder)
    try:
        status = os.fstat(look)
        handle = open_up(look, folder, name, FOLDER, 0o700)
    finally:
        os.close(look)
    return handle, status, stat.S_IMODE(status.st_mode)


def open_up(look: int, folder: int, name: bytes, flags: int, rights: int) -> int:
    """Open with ``flags`` what ``look`` shows after giving its owner ``rights``; a failure gives its mode back."""
    mode = stat.S_IMODE(os.fstat(look).st_mode)
    set_mode(look, folder, name, mode | rights)
    try:
        handle = os.open(name, flags, dir_fd=folder)
        if os.path.samestat(os.fstat(look), os.fstat(handle)):
            return handle
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    except OSError:
        set_mode(look, folder, name, mode)
        raise
