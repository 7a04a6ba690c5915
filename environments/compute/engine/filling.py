"""``tree.write``: empties a workspace and fills it with the entries of a stream (see ``records``).

A reader may rely on:
  * nothing outside the workspace is touched, whatever the stream says and whatever changes the tree meanwhile: entries
    are made in folders reached by handles, and never through a link or over something that is there;
  * a stream that is not in order, cut or out of bounds, and a disk that is full, end it with a failure and leave the
    workspace empty. Only when the client left or cancelled it stays as it is: whoever writes next begins anew;
  * modes (set-id and sticky bits too), times, attributes, holes and hard links are as the stream says; attributes that
    the file system does not take are counted. Folders get mode and time when nothing more comes for them;
  * everything is on the disk when the result is given (``syncfs``);
  * memory: a piece, one entry's attributes and extents, and some bytes a level.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread

from environments.compute.engine import libc
from environments.compute.engine.descent import Descent
from environments.compute.engine.records import (
    FILE,
    FOLDER,
    LINK,
    NAME,
    WRITE,
    XATTRS_MAX,
    BadRecord,
    Inflow,
    Order,
    check_path,
    data_size,
    shown,
    unpack_extents,
    unpack_xattrs,
)
from environments.compute.engine.removal import FOLDER as FOLDER_FLAGS
from environments.compute.engine.removal import empty_folder
from environments.compute.engine.tree import tool_error
from environments.compute.engine.wire import ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from environments.compute.engine.records import Extents

SMALL = 64 * 1024
FLUSH_BYTES = 32 << 20
_ENTRY = 4096
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Quota:
    """What a workspace may hold: this one leaves it to the disk. Sizes are bytes."""

    def emptied(self) -> None:
        """The workspace is empty now."""

    def charge(self, size: int) -> None:
        """An entry with ``size`` bytes of data will be made; raises :class:`ToolError` when it does not fit."""


class _Syncs:
    """Brings to the disk what was written, now and then and beside the writing.

    A pod's memory counts what is not on the disk yet; once it is full of that, the kernel lets the writer wait long.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._waiting = 0
        self._error: OSError | None = None
        self._busy = allocate_lock()

    def note(self, size: int) -> None:
        """An entry with ``size`` bytes of data was written."""
        self._waiting += size + _ENTRY
        if self._waiting >= FLUSH_BYTES:
            self._waiting = 0
            self._busy.acquire()
            try:
                start_new_thread(self._sync, ())
            except RuntimeError:  # the limit on processes counts threads too
                self._sync()

    def settle(self) -> None:
        """Wait until nothing is under way."""
        with self._busy:
            return

    def last(self) -> None:
        """Everything is on the disk; raises ``OSError`` for what could not be brought there, now or earlier."""
        self._busy.acquire()
        self._sync()
        if self._error is not None:
            raise self._error

    def _sync(self) -> None:
        try:
            libc.call("syncfs", self._root)
        except OSError as error:  # told once, to whoever asks first
            self._error = error
        finally:
            self._busy.release()


class _Entry:
    """One entry of the stream, checked, up to its data."""

    __slots__ = ("extents", "kind", "mode", "mtime", "path", "size", "target", "xattrs")

    def __init__(self, inflow: Inflow) -> None:
        head = WRITE.unpack(inflow.exactly(WRITE.size))
        self.kind, self.mode, self.mtime, self.size, path, target, xattrs, extents = head
        if xattrs > XATTRS_MAX or self.kind not in (FILE, FOLDER, LINK, NAME) or self.mode > 0o7777:
            raise BadRecord("An entry is out of its bounds.")
        self.path = inflow.exactly(path)
        self.target = inflow.exactly(target)
        self.xattrs = unpack_xattrs(inflow.exactly(xattrs)) if xattrs else {}
        self.extents: Extents | None = unpack_extents(extents, inflow, self.size)
        if self.kind != FILE and (self.size or self.extents):
            raise BadRecord(f"{shown(self.path)} has data and is no file.")


class Filling:
    """One stream into the workspace ``root``, a handle that stays the caller's."""

    def __init__(self, root: int, quota: Quota | None = None) -> None:
        self._root = root
        self._quota = quota or Quota()
        self._at = Descent(root)
        self._firsts = Descent(root)
        self._order = Order(self._finish_folder)
        self._shown = ""
        self._syncs = _Syncs(root)
        self._entries = self._bytes = self._refused = 0
        self._make = {FILE: self._file, FOLDER: self._folder, LINK: self._link, NAME: self._name}

    def run(self, body: Iterable[bytes]) -> dict[str, Any]:
        """Empty, write, sync; gives the result of ``tree.write``. Raises :class:`ToolError`."""
        try:
            try:
                self._fill(Inflow(body))
            finally:
                self._firsts.close()
                self._at.close()
                self._syncs.settle()
            self._syncs.last()
        except (BadRecord, ToolError, OSError) as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            empty_folder(self._root)
            raise self._failure(error) from error
        return {"entries": self._entries, "bytes": self._bytes, "refusedXattrs": self._refused}

    def _failure(self, error: Exception) -> ToolError:
        if isinstance(error, ToolError):
            return error
        if isinstance(error, OSError):
            return tool_error(error, f"/workspace/{self._shown}")
        return ToolError("tool.failed", f"The tree cannot be written: {error}")

    def _fill(self, inflow: Inflow) -> None:
        empty_folder(self._root)
        self._quota.emptied()
        while not inflow.at_end():
            entry = _Entry(inflow)
            self._shown = shown(entry.path)
            self._order.take(entry.path, folder=entry.kind == FOLDER, note=(entry.mode, entry.mtime))
            data = data_size(entry.extents, entry.size) if entry.kind == FILE else 0
            self._quota.charge(data)
            folder, _, name = entry.path.rpartition(b"/")
            self._make[entry.kind](entry, self._at.go(folder), name, inflow)
            self._entries += 1
            self._bytes += data
            self._syncs.note(data)
        self._order.end()

    # ---------------------------------------------------------------------------------------------------------- entries

    def _file(self, entry: _Entry, parent: int, name: bytes, inflow: Inflow) -> None:
        handle = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            end = 0
            for offset, length in ((0, entry.size),) if entry.extents is None else entry.extents:
                if offset != end:
                    os.lseek(handle, offset, os.SEEK_SET)
                _pour(handle, inflow, length)
                end = offset + length
            if end < entry.size:
                os.ftruncate(handle, entry.size)
            self._set_xattrs(handle, entry.xattrs)
            os.fchmod(handle, entry.mode)
            os.utime(handle, ns=(entry.mtime, entry.mtime))
        finally:
            os.close(handle)

    def _folder(self, entry: _Entry, parent: int, name: bytes, _inflow: Inflow) -> None:
        os.mkdir(name, 0o700, dir_fd=parent)
        if entry.xattrs:
            handle = os.open(name, FOLDER_FLAGS, dir_fd=parent)
            try:
                self._set_xattrs(handle, entry.xattrs)
            finally:
                os.close(handle)

    def _finish_folder(self, path: bytes, note: Any) -> None:
        """Nothing more comes for a folder: give it its mode and its time."""
        mode, mtime = note
        handle = self._at.go(path)
        os.fchmod(handle, mode)
        os.utime(handle, ns=(mtime, mtime))

    def _link(self, entry: _Entry, parent: int, name: bytes, _inflow: Inflow) -> None:
        if not entry.target or b"\0" in entry.target:
            raise BadRecord(f"{self._shown} leads nowhere.")
        os.symlink(entry.target, name, dir_fd=parent)
        os.utime(name, ns=(entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)

    def _name(self, entry: _Entry, parent: int, name: bytes, _inflow: Inflow) -> None:
        check_path(entry.target)
        folder, _, first = entry.target.rpartition(b"/")
        try:
            os.link(first, name, src_dir_fd=self._firsts.go(folder), dst_dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            raise BadRecord(f"{self._shown} is a name of a file that is not there.") from None

    def _set_xattrs(self, handle: int, xattrs: dict[bytes, bytes]) -> None:
        for name, value in xattrs.items():
            try:
                os.setxattr(handle, name, value)
            except OSError:  # an attribute is no reason to lose a disk: the file system has none, or none so large
                self._refused += 1


def _pour(handle: int, inflow: Inflow, size: int) -> None:
    if size <= SMALL:
        _write(handle, inflow.exactly(size))
        return
    for piece in inflow.pieces(size):
        _write(handle, piece)


def _write(handle: int, data: bytes) -> None:
    done = os.write(handle, data)
    while done < len(data):
        done += os.write(handle, memoryview(data)[done:])
