"""``tree.read``: attributes, extents and data of the files that one request names (see ``records``).

A reader may rely on:
  * a file that is gone, cannot be read or is no regular file any more is told by its status and ends nothing;
  * exactly as much data is sent as the extents say: what a file lost while it was read is sent as zeros, and told;
  * the ``STAT`` before is taken when the file was opened, the one after when its last byte had left its pages;
  * a file that its owner closed to himself is opened for the moment; no link is followed, no device is waited for;
  * memory: the request, and a few pieces.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from contextlib import suppress

from environments.compute.engine.descent import LOOK, Descent, open_up
from environments.compute.engine.records import (
    EXTENTS_MAX,
    FILE,
    LENGTH,
    MISSING,
    OK,
    OTHER,
    PIECE,
    READ,
    READ_BATCH,
    READ_END,
    STAT,
    UNREADABLE,
    BadRecord,
    Extents,
    check_path,
    pack_extents,
    pack_stat,
    read_xattrs,
)
from environments.compute.engine.removal import set_mode
from environments.compute.engine.wire import ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Send = Callable[[bytes | memoryview], None]

FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
SMALL = 64 * 1024
AHEAD = 32  # files that are opened before they are read, so that a disk is not asked for one after the other
_LEAST_HOLE = 64 * 1024  # of a file with too many extents the smaller holes are read as zeros
_NOTHING = bytes(STAT.size)
_STATUS = {errno.ENOENT: MISSING, errno.ENOTDIR: MISSING, errno.ELOOP: OTHER, errno.ENXIO: OTHER}


def collect(body: Iterable[bytes]) -> bytes:
    """The whole request; raises :class:`ToolError` for one that is too large."""
    parts, size = [], 0
    for part in body:
        size += len(part)
        if size > READ_BATCH:
            raise ToolError("tool.too_large", f"One request names files in at most {READ_BATCH} bytes.")
        parts.append(part)
    return b"".join(parts)


def paths(request: bytes) -> Iterator[bytes]:
    """The paths in a request; raises :class:`BadRecord`."""
    start = 0
    while start < len(request):
        (length,) = LENGTH.unpack_from(request, start) if start + LENGTH.size <= len(request) else (0,)
        start += LENGTH.size + length
        path = request[start - length : start]
        if not length or len(path) != length:
            raise BadRecord("The request is cut.")
        check_path(path)
        yield path


class Reading:
    """One request; ``send`` takes the answer in pieces of at most ``PIECE``."""

    def __init__(self, root: int, send: Send) -> None:
        self._at = Descent(root)
        self._send = send
        self._ahead: deque[tuple[int, int]] = deque()
        self._ready = bytearray()
        self._piece = memoryview(bytearray(PIECE))

    def run(self, request: bytes) -> dict[str, Any]:
        """Answer for every path; gives the result of ``tree.read``."""
        files = 0
        try:
            for path in paths(request):
                self._ahead.append(self._open(path))
                if len(self._ahead) > AHEAD:
                    self._answer()
                files += 1
            while self._ahead:
                self._answer()
        finally:
            self._close()
        self._flush()
        return {"files": files}

    def _open(self, path: bytes) -> tuple[int, int]:
        """Open a file and have its beginning fetched from the disk: status and handle."""
        folder, _, name = path.rpartition(b"/")
        try:
            handle = _open(self._at.go(folder), name)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            return _STATUS.get(error.errno or 0, UNREADABLE), -1
        with suppress(OSError):  # a pipe has nothing to fetch
            os.posix_fadvise(handle, 0, SMALL, os.POSIX_FADV_WILLNEED)
        return OK, handle

    def _answer(self) -> None:
        """Answer for the file that was opened first."""
        status, handle = self._ahead.popleft()
        if status != OK:
            self._tell(status)
            return
        try:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode):
                self._file(handle, found)
            else:
                self._tell(OTHER)
        finally:
            os.close(handle)

    def _close(self) -> None:
        for status, handle in self._ahead:
            if status == OK:
                os.close(handle)
        self._at.close()

    def _tell(self, status: int) -> None:
        self._add(READ.pack(status, _NOTHING, 0, 0))

    def _file(self, handle: int, status: os.stat_result) -> None:
        xattrs, size = read_xattrs(handle), status.st_size
        extents = find_extents(handle, size) if status.st_blocks * 512 < size else None
        count, packed = pack_extents(extents)
        self._add(READ.pack(OK, pack_stat(status, FILE), len(xattrs), count) + xattrs + packed)
        cut = False
        for offset, length in ((0, size),) if extents is None else extents:
            missing = self._data(handle, offset, offset + length)
            cut = cut or missing > 0
            self._zeros(missing)
        self._add(READ_END.pack(pack_stat(os.fstat(handle), FILE), cut))

    def _data(self, handle: int, start: int, end: int) -> int:
        """Send what the file holds from ``start`` to ``end``; gives how much of it is missing."""
        if end - start <= SMALL:
            data = _pread(handle, end - start, start)
            self._add(data)
            return end - start - len(data)
        self._flush()
        while start < end:
            try:
                size = os.preadv(handle, [self._piece[: end - start]], start)
            except OSError:  # a damaged disk: what it does not give is told as missing
                break
            if not size:
                break
            self._send(self._piece[:size])
            start += size
        return end - start

    def _zeros(self, size: int) -> None:
        while size:
            part = min(size, SMALL)
            self._add(bytes(part))
            size -= part

    def _add(self, data: bytes) -> None:
        self._ready += data
        if len(self._ready) >= PIECE // 2:
            self._flush()

    def _flush(self) -> None:
        if self._ready:
            self._send(bytes(self._ready))
            self._ready.clear()


def _pread(handle: int, size: int, offset: int) -> bytes:
    try:
        return os.pread(handle, size, offset)
    except OSError:
        return b""


def _open(folder: int, name: bytes) -> int:
    try:
        return os.open(name, FILE_FLAGS, dir_fd=folder)
    except PermissionError:
        return _force(folder, name)


def _force(folder: int, name: bytes) -> int:
    """Open a file that its owner closed to himself; it has its mode back at once."""
    look = os.open(name, LOOK, dir_fd=folder)
    try:
        status = os.fstat(look)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        handle = open_up(look, folder, name, FILE_FLAGS, 0o400)
        set_mode(look, folder, name, stat.S_IMODE(status.st_mode))
        return handle
    finally:
        os.close(look)


def find_extents(handle: int, size: int) -> Extents | None:
    """Where a file has data; ``None`` when it has no holes, or its file system cannot tell."""
    found: list[tuple[int, int]] = []
    least, position = 1, 0
    try:
        while position < size and (start := _data_from(handle, position)) is not None and start < size:
            position = min(size, os.lseek(handle, start, os.SEEK_HOLE))
            found.append((start, position))
            while len(found) > EXTENTS_MAX:
                least = max(_LEAST_HOLE, 2 * least)
                found = _joined(found, least)
    except OSError:
        return None
    if found == [(0, size)]:
        return None
    return tuple((start, end - start) for start, end in _joined(found, least))


def _data_from(handle: int, position: int) -> int | None:
    try:
        return os.lseek(handle, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None  # a hole up to the end


def _joined(extents: list[tuple[int, int]], least: int) -> list[tuple[int, int]]:
    """The extents without the holes between them that are smaller than ``least``."""
    joined: list[tuple[int, int]] = []
    for start, end in extents:
        if joined and start - joined[-1][1] < least:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
