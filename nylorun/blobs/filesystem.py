"""A store in a folder: ``<folder>/<first two digits>/<key>``, and ``<folder>/tmp`` for what is being written.

Durability: each put writes a temporary file, fsyncs it, renames it to its place and fsyncs that folder, all before it
returns. Batches (write many, then one ``syncfs``) were measured and gain nothing once four threads put at the same
time, because the file system then shares its journal commits between them; and ``syncfs`` would wait for the writes of
everybody else on the disk. A reader never sees a part of a blob. A folder that vanished (an unmounted disk) is
``StoreUnavailable``, never "missing".

The temporary files of killed writers are told by their place; :meth:`FileSystemStore.list` removes those older than a
day. A copy of the folder, made while nothing is deleted, is a complete backup of the store.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from nylorun.blobs.errors import BlobMissing, StoreUnavailable
from nylorun.blobs.store import StoredBlob, checked_key
from nylorun.kernel import clock

TEMPORARY = "tmp"
ABANDONED_SECONDS = 24 * 3600.0
"""A temporary file this old belongs to a writer that was killed."""

YOUNG_SECONDS = 600.0
"""A blob this young may have been renamed by another writer that has not synced the folder yet."""


class FileSystemStore:
    """Blobs as files that only this user can read. The folder is made when it is missing."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = os.path.abspath(folder)
        with _told(self.folder):
            for folder in (self.folder, os.path.join(self.folder, TEMPORARY)):
                os.makedirs(folder, mode=0o700, exist_ok=True)

    def put(self, key: str, data: bytes) -> None:
        place = self._place(key)
        temporary = os.path.join(self.folder, TEMPORARY, f"{key}.{secrets.token_hex(8)}")
        with _told(self.folder):
            try:
                _write(temporary, data)
                self._move(temporary, place)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            _sync_folder(os.path.dirname(place))

    def get(self, key: str) -> bytes:
        place = self._place(key)
        with _told(self.folder):
            try:
                with open(place, "rb", buffering=0) as file:
                    return file.readall()
            except FileNotFoundError:
                self._require_folder()
                raise BlobMissing(key) from None

    def has(self, key: str) -> bool:
        place = self._place(key)
        with _told(self.folder):
            try:
                changed = os.stat(place).st_ctime
            except FileNotFoundError:
                self._require_folder()
                return False
            if clock.utc_now().timestamp() - changed < YOUNG_SECONDS:
                _sync_folder(os.path.dirname(place))
            return True

    def delete(self, key: str) -> None:
        place = self._place(key)
        with _told(self.folder):
            try:
                os.unlink(place)
            except FileNotFoundError:
                self._require_folder()

    def list(self) -> Iterator[StoredBlob]:
        now = clock.utc_now().timestamp()
        for group in self._entries(self.folder):
            if group.name == TEMPORARY:
                self._remove_abandoned(group.path, now)
            elif len(group.name) == 2:
                yield from self._blobs(group.path, now)

    def check(self) -> None:
        probe = os.path.join(self.folder, TEMPORARY, f"probe.{secrets.token_hex(8)}")
        with _told(self.folder):
            self._require_folder()
            try:
                _write(probe, b"probe")
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(probe)

    def _place(self, key: str) -> str:
        return os.path.join(self.folder, checked_key(key)[:2], key)

    def _move(self, temporary: str, place: str) -> None:
        try:
            os.rename(temporary, place)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(place), 0o700)
            _sync_folder(self.folder)
            os.rename(temporary, place)

    def _require_folder(self) -> None:
        if not os.path.isdir(os.path.join(self.folder, TEMPORARY)):
            raise StoreUnavailable(f"The blob folder {self.folder} is not there or is not one of ours.")

    def _blobs(self, group: str, now: float) -> Iterator[StoredBlob]:
        for entry in self._entries(group):
            with _told(self.folder):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
            if len(entry.name) == 64:
                yield StoredBlob(entry.name, found.st_size, now - found.st_mtime)

    def _remove_abandoned(self, folder: str, now: float) -> None:
        for entry in self._entries(folder):
            with _told(self.folder), contextlib.suppress(FileNotFoundError):
                if now - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_SECONDS:
                    os.unlink(entry.path)

    def _entries(self, folder: str) -> Sequence[os.DirEntry[str]]:
        with _told(self.folder), os.scandir(folder) as found:
            return tuple(found)


def _write(path: str, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _told(folder: str) -> Iterator[None]:
    """Failures of the file system, as ``StoreUnavailable``."""
    try:
        yield
    except OSError as failure:
        raise StoreUnavailable(f"The blob folder {folder} failed: {failure.strerror or failure}.") from failure
