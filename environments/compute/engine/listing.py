"""``tree.list``: every entry of a workspace with its ``STAT``, in the order of whole paths (see ``records``).

As bytes ``a-b`` and ``a.txt`` stand between ``a`` and ``a/b``, so a folder's content comes at the place of its name
with a ``/``, which other names may separate from its own.

A reader may rely on:
  * memory is bounded by ``NAMES_BYTES`` and some 300 bytes a level: of a larger folder only its first names are kept,
    and it is read again for the rest;
  * with ``content`` the bytes of small plain files come with their entries, as they were at one moment: of files with
    one name, without holes and attributes, that did not change while they were read. The others are only listed;
  * what vanishes meanwhile is left out; what appears may be missing. Nothing of the kind ends the walk;
  * links are not followed, folders closed to their owner are opened for the walk (see ``descent``).
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque

from environments.compute.engine.descent import Descent, enter
from environments.compute.engine.reading import AHEAD, FILE_FLAGS, SMALL
from environments.compute.engine.records import (
    CLOCK,
    FILE,
    FOLDER,
    GROUP,
    GROUP_MAX,
    LINK,
    LISTED,
    PATH_MAX,
    PIECE,
    kind_of,
    pack_stat,
    read_xattrs,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAMES_BYTES = 12 << 20
_NAME_COST = 48  # of a name beside its characters
_SLASH = 0x2F
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL))


class _Level:
    """A folder on the way: the keys still to do, last first, and whether more of it has to be read after them."""

    __slots__ = ("complete", "folders", "keys", "last", "size")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.last = b""
        self.complete = False
        self.size = 0
        self.folders: list[bytes] = []  # sent as folders; their content may still come

    def sent(self, name: bytes) -> None:
        """Note a folder. Content can only come for those whose name the last one begins with."""
        self.folders = [known for known in self.folders if name.startswith(known)]
        self.folders.append(name)


class _Groups:
    """Entries on their way to ``send``, which takes them in pieces of at most ``PIECE``."""

    def __init__(self, send: Callable[[bytes | memoryview], None]) -> None:
        self.entries = 0
        self._send = send
        self._heads: list[bytes] = []
        self._paths: list[bytes] = []
        self._extras: list[bytes] = []
        self._size = 0

    def add(self, path: bytes, status: bytes, extra: bytes, *, content: bool = False) -> None:
        """The next entry."""
        self._heads.append(LISTED.pack(len(path), len(extra), content, status))
        self._paths.append(path)
        self._extras.append(extra)
        self._size += len(path) + len(extra)
        if self._size >= PIECE or len(self._heads) == GROUP_MAX:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        if not self._heads:
            return
        paths, extras = b"".join(self._paths), b"".join(self._extras)
        head = GROUP.pack(len(self._heads), len(paths), len(extras))
        whole = memoryview(b"".join((head, *self._heads, paths, extras)))
        self.entries += len(self._heads)
        self._heads.clear()
        self._paths.clear()
        self._extras.clear()
        self._size = 0
        for start in range(0, len(whole), PIECE):
            self._send(whole[start : start + PIECE])


class Listing:
    """One walk; ``send`` takes what it finds in pieces of at most ``PIECE``."""

    def __init__(
        self,
        root: int,
        send: Callable[[bytes | memoryview], None],
        *,
        content: bool = False,
        names_bytes: int = NAMES_BYTES,
    ) -> None:
        self._at = Descent(root)
        self._levels: list[_Level] = []
        self._send = send
        self._content = content
        self._names_bytes = names_bytes
        self._names_held = 0
        self._groups = _Groups(send)
        self._ahead: deque[tuple[bytes, int, os.stat_result]] = deque()  # open files, in the order of their paths
        self._skipped = self._unreachable = 0

    def run(self) -> dict[str, Any]:
        """Walk to the end; gives the result of ``tree.list``."""
        clock = time.time_ns()
        self._send(CLOCK.pack(clock))
        try:
            self._open_level()
            while self._levels:
                self._work(self._levels[-1])
            self._read_all()
        finally:
            for _, handle, _ in self._ahead:
                os.close(handle)
            self._at.close()
        self._groups.flush()
        counts = {"entries": self._groups.entries, "skipped": self._skipped, "unreachable": self._unreachable}
        return {**counts, "clockNs": clock}

    def _work(self, level: _Level) -> None:
        """Do the keys of a folder up to the next one that leads down."""
        handle = self._handle()
        if handle is None or not (level.keys or (not level.complete and self._read(level, handle))):
            self._forget(self._levels.pop())
            if self._levels:
                self._at.up()
            return
        keys = level.keys
        while keys:
            key = level.last = keys.pop()
            if key[-1] == _SLASH:
                if self._descend(level, key[:-1]):
                    return
            else:
                self._take(level, handle, key)

    def _handle(self) -> int | None:
        try:
            return self._at.handle
        except FileNotFoundError:  # moved away while the walk was beneath it
            self._unreachable += 1
            return None

    # ------------------------------------------------------------------------------------------------------------ names

    def _open_level(self) -> None:
        level = _Level()
        self._levels.append(level)
        self._read(level, self._at.handle)
        if self._names_held > self._names_bytes:
            for above in self._levels[:-1]:
                self._forget(above)

    def _read(self, level: _Level, handle: int) -> bool:
        """Read the keys after the last one; ``False`` when there are none."""
        self._forget(level)
        level.keys, level.size, level.complete = self._keys(handle, level.last)
        self._names_held += level.size
        return bool(level.keys)

    def _forget(self, level: _Level) -> None:
        """Give the memory of the keys back; they are read again when they are wanted."""
        self._names_held -= level.size
        level.keys, level.size, level.complete = [], 0, False

    def _keys(self, handle: int, after: bytes) -> tuple[list[bytes], int, bool]:
        """The first keys after ``after``, last first; their size; and whether these are all."""
        keys: list[bytes] = []
        size, before, most = 0, b"", self._names_bytes // 2
        with os.scandir(handle) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                for key in (name, name + b"/") if entry.is_dir(follow_symlinks=False) else (name,):
                    if key <= after or (before and key >= before):
                        continue
                    keys.append(key)
                    size += len(key) + _NAME_COST
                if size > most:
                    keys.sort()
                    del keys[len(keys) // 2 :]
                    size = sum(map(len, keys)) + _NAME_COST * len(keys)
                    before = keys[-1] + b"\0"
        keys.sort(reverse=True)
        return keys, size, not before

    # ---------------------------------------------------------------------------------------------------------- entries

    def _descend(self, level: _Level, name: bytes) -> bool:
        """Enter a folder that was sent as one; ``False`` when there is nothing to enter."""
        if name not in level.folders:
            return False
        if len(self._at.prefix) + len(name) + 2 > PATH_MAX:
            self._unreachable += 1
            return False
        try:
            self._at.down(name)
        except OSError as error:
            self._miss(error)
            return False
        self._open_level()
        return True

    def _take(self, level: _Level, handle: int, name: bytes) -> None:
        path = self._at.prefix + name
        if len(path) > PATH_MAX:
            self._unreachable += 1
            return
        if self._content and self._take_file(path, handle, name):
            return
        self._read_all()
        try:
            status = os.stat(name, dir_fd=handle, follow_symlinks=False)
            kind, extra = kind_of(status.st_mode), b""
            if kind is None:
                self._skipped += 1
                return
            if kind == LINK:
                extra = os.readlink(name, dir_fd=handle)
        except OSError as error:
            self._miss(error)
            return
        if kind == FOLDER:
            extra = self._xattrs(handle, name)
            level.sent(name)
        self._groups.add(path, pack_stat(status, kind), extra)

    def _take_file(self, path: bytes, folder: int, name: bytes) -> bool:
        """Take a plain file and have its content fetched from the disk; ``False`` for what is none or is closed."""
        try:
            handle = os.open(name, FILE_FLAGS, dir_fd=folder)
        except OSError:
            return False
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            return False
        if status.st_size > SMALL or status.st_nlink != 1 or status.st_blocks * 512 < status.st_size:
            os.close(handle)
            self._read_all()
            self._groups.add(path, pack_stat(status, FILE), b"")
            return True
        try:
            os.posix_fadvise(handle, 0, SMALL, os.POSIX_FADV_WILLNEED)
        finally:
            self._ahead.append((path, handle, status))
        if len(self._ahead) > AHEAD:
            self._read_first()
        return True

    def _read_all(self) -> None:
        while self._ahead:
            self._read_first()

    def _read_first(self) -> None:
        """Read the file that was opened first; one that changed since then is only listed."""
        path, handle, status = self._ahead.popleft()
        try:
            before = pack_stat(status, FILE)
            data = None if read_xattrs(handle) else _whole(handle, status.st_size)
            after = pack_stat(os.fstat(handle), FILE)
        finally:
            os.close(handle)
        if data is None or after != before:
            self._groups.add(path, after, b"")
        else:
            self._groups.add(path, before, data, content=True)

    def _xattrs(self, folder: int, name: bytes) -> bytes:
        try:
            handle, _, mode = enter(folder, name)
        except OSError:
            return b""
        try:
            found = read_xattrs(handle)
            if mode is not None:
                os.fchmod(handle, mode)
            return found
        finally:
            os.close(handle)

    def _miss(self, error: OSError) -> None:
        """Note what cannot be reached; what is gone is no entry any more. Without handles there is no going on."""
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise error
        self._unreachable += error.errno not in _GONE


def _whole(handle: int, size: int) -> bytes | None:
    """The content of a file of ``size`` bytes; ``None`` when the disk does not give all of it."""
    try:
        data = os.pread(handle, size, 0)
    except OSError:
        return None
    return data if len(data) == size else None
