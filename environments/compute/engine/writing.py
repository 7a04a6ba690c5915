"""Writing a file whole or not at all, in a folder that somebody hostile may be changing.

A reader may rely on:
  * the content and the mode are on the disk before the name leads to them; a failure leaves nothing;
  * while the content comes the file has no name, where the file system can (ext4, XFS, Btrfs, tmpfs) and ``/proc`` is
    there: nobody else opens it, and a process killed meanwhile leaves nothing. An old file is replaced through a second
    name, ``.nylorun-*.tmp``, which is there for the moment between two calls. Elsewhere it is there all the while;
  * links are never followed; a thing that came to stand at the name meanwhile is replaced as an old file is.
Sizes are bytes.
"""

from __future__ import annotations

import os

from environments.compute.engine.paths import Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_handles() -> int | None:
    """A handle of this process's list of handles, by which a file without a name can be given one."""
    try:
        return os.open("/proc/self/fd", os.O_PATH | _FOLDER)
    except OSError:
        return None


def write_whole(
    place: Place, content: Iterable[bytes], mode: int, check: Callable[[int], None], handles: int | None
) -> tuple[int, str]:
    """Make or replace the file at ``place``; gives size and SHA-256. ``check`` may refuse each size it grows to.

    ``handles`` is what :func:`open_handles` gave this process.
    """
    handle, name = _begin(place.parent, handles)
    try:
        try:
            size, digest = _pour(handle, content, check)
            os.fchmod(handle, mode)
            os.fsync(handle)
            name = name or _named(handle, place, handles)
        finally:
            os.close(handle)
        if name != place.name:
            os.rename(name, place.name, src_dir_fd=place.parent, dst_dir_fd=place.parent)
    except BaseException:
        if name:
            _forget(place.parent, name)
        raise
    _sync_folder(place.parent)
    return size, digest


def _begin(folder: int, handles: int | None) -> tuple[int, str]:
    """A new file to write to, and its name in the folder: ``""`` for none."""
    if handles is not None:
        try:
            return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=folder), ""
        except OSError:  # the file system cannot
            pass
    name = _draft()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=folder), name


def _draft() -> str:
    return f".nylorun-{os.urandom(8).hex()}.tmp"


def _named(handle: int, place: Place, handles: int | None) -> str:
    """Give the file a name in its folder: its own while that is free, else one to be renamed."""
    if place.status is None:
        try:
            os.link(str(handle), place.name, src_dir_fd=handles, dst_dir_fd=place.parent, follow_symlinks=True)
        except FileExistsError:
            pass  # somebody was first: replaced below, as an old file is
        else:
            return place.name
    name = _draft()
    os.link(str(handle), name, src_dir_fd=handles, dst_dir_fd=place.parent, follow_symlinks=True)
    return name


def _pour(handle: int, content: Iterable[bytes], check: Callable[[int], None]) -> tuple[int, str]:
    digest, size = sha256(), 0
    for data in content:
        size += len(data)
        check(size)
        digest.update(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]
    return size, str(digest.hexdigest())


def _forget(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _sync_folder(folder: int) -> None:
    try:
        handle = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=folder)
    except PermissionError:  # a folder its owner may enter and not list: the rename stands, only its sync is left out
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256() -> Any:
    """A SHA-256 without OpenSSL where there is one: loading ``hashlib`` alone costs an Engine 4 MB."""
    try:
        from _sha2 import sha256 as make  # type: ignore[import-not-found]  # noqa: PLC0415 - loaded at the first write
    except ImportError:
        try:
            from _sha256 import sha256 as make  # type: ignore[import-not-found]  # noqa: PLC0415 - before Python 3.12
        except ImportError:
            from hashlib import sha256 as make  # noqa: PLC0415 - an interpreter built without either
    return make()
