"""The file tools on one workspace: read, write, list, stat, remove, move.

Works the same inside a sandbox and on the host, as any user, on a tree that its owner may be changing (see ``paths``).

A reader may rely on:
  * every failure is :class:`ToolError` with a code of the tool table; nothing else is raised for what a tree holds;
  * ``write`` is whole or not at all and synced with its folder, see ``writing``; after a failure nothing is left; the
    mode never carries set-id or sticky bits; parents that many writers make at once are no conflict;
  * only regular files are read and replaced; a FIFO or device is never opened for reading or waiting;
  * paths in results are relative to ``/workspace``, the root itself is ``/workspace``; bytes of a name that are not
    UTF-8 are shown as U+FFFD, and such a name can be reached by commands alone;
  * ``list`` is sorted by path and ends after ``LIST_MAX`` entries or ``MAX_DEPTH`` folders with ``truncated``.
Sizes and offsets are bytes. Times are UTC with milliseconds.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from environments.compute.engine.paths import MAX_DEPTH, MOUNT, Place, locate, normalise
from environments.compute.engine.removal import remove_tree
from environments.compute.engine.wire import CHUNK, ToolError
from environments.compute.engine.writing import open_handles, write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

LIST_MAX = 10_000
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READABLE_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_CODES = {
    errno.ENOENT: ("tool.not_found", "does not exist"),
    errno.ENOTDIR: ("tool.not_directory", "is not a folder"),
    errno.EISDIR: ("tool.is_directory", "is a folder"),
    errno.ENOTEMPTY: ("tool.not_empty", "is a folder that is not empty"),
    errno.EEXIST: ("tool.exists", "exists"),
    errno.EACCES: ("tool.permission", "may not be touched by the sandbox user"),
    errno.EPERM: ("tool.permission", "may not be touched by the sandbox user"),
    errno.EROFS: ("tool.permission", "may not be touched by the sandbox user"),
    errno.ENOSPC: ("tool.no_space", "does not fit: the disk is full"),
    errno.EDQUOT: ("tool.no_space", "does not fit: the disk is full"),
    errno.EFBIG: ("tool.too_large", "is larger than the disk allows"),
}


class Tree:
    """The workspace at ``root``, a path or a folder handle; a handle stays the caller's. It serves the process that
    made it, which may close itself off from ``/proc`` afterwards."""

    def __init__(self, root: str | os.PathLike[str] | int) -> None:
        self._root = os.dup(root) if isinstance(root, int) else os.open(root, READABLE_FOLDER)
        self._handles = open_handles()

    def close(self) -> None:
        os.close(self._root)
        if self._handles is not None:
            os.close(self._handles)

    @property
    def root(self) -> int:
        """The handle of the workspace; it stays this Tree's."""
        return self._root

    def folder(self, path: str) -> int:
        """An ``O_PATH`` handle of the folder at ``path``, for a command to start in; the caller closes it."""
        with _errors(path), self._find(path) as place:
            _require_folder(place, path)
            return os.open(place.name or ".", FOLDER, dir_fd=place.parent)

    def read(self, path: str, offset: int, limit: int | None, sink: Callable[[bytes], None]) -> dict[str, Any]:
        """Give the slice to ``sink`` in pieces of at most 256 KiB; ``limit`` ``None`` is the rest of the file."""
        with _errors(path), self._find(path) as place:
            _require_file(place, path)
            handle = place.open(os.O_RDONLY)
            try:
                return _read(handle, path, offset, limit, sink)
            finally:
                os.close(handle)

    def write(
        self,
        path: str,
        content: Iterable[bytes],
        *,
        mode: int = 0o644,
        make_parents: bool = False,
        max_bytes: int | None = None,
    ) -> dict[str, Any]:
        """Replace or make the file at ``path``; a link at its end is followed, so the link stays a link."""
        shown = normalise(path)
        with _errors(path), locate(self._root, shown, follow=True, make_folders=make_parents) as place:
            if place.is_folder:
                raise ToolError("tool.is_directory", f"{_full(path)} is a folder.")
            if place.status is not None and not place.is_file:
                raise ToolError("tool.failed", f"{_full(path)} is not a regular file.")
            size, digest = write_whole(place, content, mode & 0o777, _Limit(path, max_bytes).check, self._handles)
            return {"path": show(shown), "size": size, "sha256": f"sha256:{digest}", "created": place.status is None}

    def list(self, path: str, *, recursive: bool = False) -> dict[str, Any]:
        """Name what the folder at ``path`` holds; with ``recursive`` everything beneath it."""
        shown = normalise(path)
        with _errors(path), self._find(path) as place:
            _require_folder(place, path)
            handle = os.open(place.name or ".", READABLE_FOLDER, dir_fd=place.parent)
            entries: list[dict[str, Any]] = []
            truncated = False
            for entry in _Listing(recursive=recursive).walk(handle, shown):
                truncated = entry is None or len(entries) == LIST_MAX
                if entry is None or truncated:
                    break
                entries.append(entry)
        return {"path": show(shown), "entries": entries, "truncated": truncated}

    def stat(self, path: str) -> dict[str, Any]:
        """The entry at ``path`` itself; a link is described, not followed."""
        shown = normalise(path)
        with _errors(path), self._find(path, follow=False) as place:
            if place.status is None:
                raise _missing(path)
            return _entry(shown, place.status, place.parent, place.name)

    def remove(self, path: str, *, recursive: bool = False) -> dict[str, Any]:
        """Remove what is at ``path``; a link is removed, not followed; a filled folder needs ``recursive``."""
        shown = normalise(path)
        with _errors(path), self._find(path, follow=False) as place:
            _refuse_root(place)
            if place.status is None:
                raise _missing(path)
            if recursive:
                return {"path": show(shown), "removed": remove_tree(place.parent, place.name)}
            (os.rmdir if place.is_folder else os.unlink)(place.name, dir_fd=place.parent)
            return {"path": show(shown), "removed": 1}

    def move(self, source: str, target: str) -> dict[str, Any]:
        """Give ``source`` the name ``target``; a file there is replaced, a folder never."""
        with _errors(source), self._find(source, follow=False) as old:
            _refuse_root(old)
            if old.status is None:
                raise _missing(source)
            with _errors(target), self._find(target, follow=False) as new:
                if new.is_folder:
                    raise ToolError("tool.exists", f"{_full(target)} is a folder.")
                os.rename(old.name, new.name, src_dir_fd=old.parent, dst_dir_fd=new.parent)
        return {"from": show(normalise(source)), "to": show(normalise(target))}

    def _find(self, path: str, *, follow: bool = True) -> Place:
        return locate(self._root, normalise(path), follow=follow)


def show(path: str) -> str:
    """A relative path as results name it: the root by its name, bytes that are not UTF-8 as U+FFFD."""
    return _clean(path) or f"/{MOUNT}"


def _clean(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "replace")


def _full(path: str) -> str:
    return _clean(f"/{MOUNT}/{normalise(path)}".rstrip("/"))


class _errors:  # a word in a with statement; contextlib would cost an Engine 3 ms at start
    """Turns ``OSError`` into :class:`ToolError` that names ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError)):
            raise tool_error(error, _full(self._path)) from error


def tool_error(error: OSError, path: str) -> ToolError:
    """The tool failure for what the kernel said of ``path``."""
    code, words = _CODES.get(error.errno or 0, ("tool.failed", f"failed: {error.strerror}"))
    return ToolError(code, f"{path} {words}.")


def _missing(path: str) -> ToolError:
    return ToolError("tool.not_found", f"{_full(path)} does not exist.")


def _require_folder(place: Place, path: str) -> None:
    if place.status is None:
        raise _missing(path)
    if not place.is_folder:
        raise ToolError("tool.not_directory", f"{_full(path)} is not a folder.")


def _require_file(place: Place, path: str) -> None:
    if place.status is None:
        raise _missing(path)
    if place.is_folder:
        raise ToolError("tool.is_directory", f"{_full(path)} is a folder.")
    if not place.is_file:
        raise ToolError("tool.failed", f"{_full(path)} is not a regular file.")


def _refuse_root(place: Place) -> None:
    if not place.name:
        raise ToolError("tool.permission", f"/{MOUNT} itself may be neither removed nor moved.")


def _read(handle: int, path: str, offset: int, limit: int | None, sink: Callable[[bytes], None]) -> dict[str, Any]:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):  # swapped since it was looked at
        raise ToolError("tool.failed", f"{_full(path)} is not a regular file.")
    position, end = offset, status.st_size if limit is None else min(status.st_size, offset + limit)
    while position < end:
        data = os.pread(handle, min(CHUNK, end - position), position)
        if not data:
            break
        sink(data)
        position += len(data)
    return {
        "path": show(normalise(path)),
        "size": status.st_size,
        "offset": offset,
        "length": position - offset,
        "mtime": _iso(status.st_mtime_ns),
        "eof": position >= status.st_size,
    }


class _Limit:
    """The most bytes a write may take; ``None`` is no limit but the disk's."""

    def __init__(self, path: str, most: int | None) -> None:
        self._path = path
        self._most = most

    def check(self, size: int) -> None:
        if self._most is not None and size > self._most:
            raise ToolError("tool.too_large", f"{_full(self._path)} would be larger than {self._most} bytes.")


class _Listing:
    """A walk in the order of whole paths: as text ``a-b`` and ``a.txt`` stand between ``a`` and ``a/b``."""

    def __init__(self, *, recursive: bool) -> None:
        self._recursive = recursive

    def walk(self, handle: int, prefix: str, depth: int = 0) -> Iterator[dict[str, Any] | None]:
        """The entries beneath ``handle``, which is closed at the end; ``None`` says that some were left out."""
        try:
            keys, complete = self._keys(handle)
            for key in keys:
                path = f"{prefix}/{key}" if prefix else key
                if key.endswith("/"):
                    yield from self._descend(handle, key[:-1], path[:-1], depth + 1)
                elif (entry := _entry_in(handle, key, path)) is not None:
                    yield entry
            if not complete:
                yield None
        finally:
            os.close(handle)

    def _keys(self, handle: int) -> tuple[list[str], bool]:
        """Names in order, and ``name/`` where a folder's own content stands; only the first are kept in memory."""
        keys: list[str] = []
        complete = True
        with os.scandir(handle) as entries:
            for entry in entries:
                keys.append(entry.name)
                if self._recursive and entry.is_dir(follow_symlinks=False):
                    keys.append(entry.name + "/")
                if len(keys) > 4 * LIST_MAX:
                    keys.sort()
                    del keys[2 * LIST_MAX + 2 :]
                    complete = False
        keys.sort()
        return keys, complete

    def _descend(self, folder: int, name: str, path: str, depth: int) -> Iterator[dict[str, Any] | None]:
        if depth >= MAX_DEPTH:
            yield None
            return
        try:
            handle = os.open(name, READABLE_FOLDER, dir_fd=folder)
        except OSError:  # gone, replaced, or closed to the sandbox user: its own entry is listed all the same
            return
        yield from self.walk(handle, path, depth)


def _entry_in(folder: int, name: str, path: str) -> dict[str, Any] | None:
    try:
        return _entry(path, os.stat(name, dir_fd=folder, follow_symlinks=False), folder, name)
    except OSError:  # removed since the folder was read
        return None


_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}


def _entry(path: str, status: os.stat_result, folder: int, name: str) -> dict[str, Any]:
    kind = _TYPES.get(stat.S_IFMT(status.st_mode), "other")
    entry: dict[str, Any] = {
        "path": show(path),
        "type": kind,
        "size": status.st_size,
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "modifiedAt": _iso(status.st_mtime_ns),
    }
    if kind == "link":
        entry["target"] = _clean(os.readlink(name, dir_fd=folder))
    return entry


def _iso(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    try:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 1_000_000:03d}Z"
    except (OverflowError, ValueError):  # a time stamp its owner set beyond what a calendar holds
        return "1970-01-01T00:00:00.000Z"
