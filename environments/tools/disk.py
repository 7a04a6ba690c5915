"""Copying a disk: from an Engine into the archive, and back. No row is read or written here.

* :func:`copy_out` reads the whole tree in one pass. Entries whose STAT is the one the previous version holds are kept
  without being read; every other file is read, again when it changed meanwhile (``READS`` times in all, then as last
  read). Sockets, pipes, devices and what vanished are left out.
* :func:`copy_in` writes a tree in the place of what is there: on a pod into the workspace itself, on a virtual one
  beside it, swapped in when it is whole.
* A ``twin`` is taken at the end of the pass, while the pod is still held, and dropped when the hold did not last or
  the archive lacks what the disk has.
* Memory is bounded whatever the tree holds. Raises :class:`CopyFailed`, ``NotAccepted``, ``Interrupted``,
  :class:`BlobError` and what ``claim`` raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from environments.compute import copying
from environments.compute.copying import FileRead, Held, Listed, Target
from environments.errors import DiskCopyFailed
from environments.services.versions import Copied
from environments.tools.twin import Twin
from nylorun.blobs import (
    BlobDamaged,
    BlobMissing,
    Claim,
    Entry,
    Store,
    StoreUnavailable,
    TreeReader,
    TreeWriter,
    blobs,
)
from nylorun.kernel.errors import ServiceUnavailable

FILES_MAX = 1_000_000
READS = 3
WINDOW = 20_000
"""Entries that wait for the next batch of file reads."""


@dataclass
class Progress:
    """What was copied so far. Written by the copying thread, read by the one that renews its lease."""

    bytes: int = 0
    files: int = 0
    total: int | None = None

    def view(self) -> dict[str, int]:
        """As an Operation shows it."""
        shown = {"bytes": self.bytes, "files": self.files}
        return shown if self.total is None else {**shown, "total": self.total}


def copy_out(
    target: Target,
    *,
    store: Store,
    claim: Claim,
    previous: str | None,
    most_bytes: int,
    hold: bool,
    progress: Progress,
    twin: Twin | None = None,
) -> Copied:
    """Copy the tree behind ``target`` into ``store``; ``previous`` is the root it is compared with.

    A previous tree that is damaged is not relied on: everything is read then, which also stores what was missing.
    """
    try:
        return _copy_out(target, store, claim, previous, most_bytes, hold, progress, twin)
    except (BlobMissing, BlobDamaged):
        if previous is None:
            raise
        progress.bytes = progress.files = 0
        return _copy_out(target, store, claim, None, most_bytes, hold, progress, twin, heal=True)


def _copy_out(
    target: Target,
    store: Store,
    claim: Claim,
    previous: str | None,
    most_bytes: int,
    hold: bool,
    progress: Progress,
    twin: Twin | None,
    *,
    heal: bool = False,
) -> Copied:
    reader = None if previous is None else TreeReader(store, previous)
    still: AbstractContextManager[Held] = copying.hold(target) if hold else nullcontext(Held(lost=True))
    with TreeWriter(store, claim, reader, max_entries=FILES_MAX, max_bytes=most_bytes, heal=heal) as writer:
        with still as held:
            with copying.list_tree(target, most_entries=FILES_MAX) as listing:
                copy = _Copy(target, writer, progress, listing.clock_ns)
                for listed, raw in _compared(listing, reader):
                    copy.take(listed, raw)
                copy.flush()
            if twin is not None and not (held.lost or listing.unreachable or copy.left_out):
                twin.take()
        if twin is not None and held.lost:
            twin.drop()
        tree = writer.finish()  # the pod goes on meanwhile
    return Copied(tree.root, tree.sha256, tree.size, tree.files)


def _compared(listing: Iterable[Listed], reader: TreeReader | None) -> Iterator[tuple[Listed, bytes | None]]:
    """Each entry, with its raw form in the previous tree where nothing about it changed."""
    known = iter(()) if reader is None else reader.raw_entries()
    path, stat, raw = next(known, (None, b"", b""))
    for listed in listing:
        while path is not None and path < listed.path:
            path, stat, raw = next(known, (None, b"", b""))
        same = path == listed.path and stat == listed.stat
        yield listed, raw if same else None


@dataclass
class _Copy:
    """The entries of one pass: kept, or waiting in order until the files among them are read."""

    target: Target
    writer: TreeWriter
    progress: Progress
    clock_ns: int
    waiting: list[Listed | bytes] = field(default_factory=list)
    first_names: dict[int, bytes] = field(default_factory=dict)
    """The first name of each file that has several, by inode."""
    left_out: int = 0
    """Files that could not be read."""

    def take(self, listed: Listed, raw: bytes | None) -> None:
        """Take the next entry of the walk."""
        several = listed.kind == "file" and listed.nlink > 1
        self.waiting.append(listed if raw is None or several else raw)
        if len(self.waiting) >= WINDOW:
            self.flush()

    def flush(self) -> None:
        """Write what waits, reading its files in one pass."""
        reads = iter(copying.read_files(self.target, list(self._paths())))
        for one in self.waiting:
            if isinstance(one, bytes):
                self.writer.keep(one)
            elif one.kind == "file":
                self._file(one, reads)
            else:
                self._plain(one)
            self.progress.files += 1
        self.waiting.clear()

    def _paths(self) -> Iterator[bytes]:
        """Of the files to read: of several names of one file, only the first."""
        for one in self.waiting:
            if isinstance(one, bytes) or one.kind != "file":
                continue
            if one.nlink == 1 or self.first_names.setdefault(one.ino, one.path) == one.path:
                yield one.path

    def _plain(self, one: Listed) -> None:
        entry = Entry(
            one.path, one.kind, one.mode, target=one.target, mtime_ns=one.mtime_ns, stat=self._trusted(one.stat),
            xattrs=one.xattrs,
        )  # fmt: skip
        add = self.writer.add_dir if one.kind == "dir" else self.writer.add_link
        add(entry)

    def _file(self, one: Listed, reads: Iterator[FileRead]) -> None:
        first = self.first_names.get(one.ino, one.path) if one.nlink > 1 else one.path
        if first != one.path:
            self._further_name(one, first)
        elif not self._read(next(reads)):
            self.first_names.pop(one.ino, None)

    def _further_name(self, one: Listed, first: bytes) -> None:
        entry = Entry(one.path, "file", one.mode, size=one.size, mtime_ns=one.mtime_ns, hardlink=first)
        self.writer.add_file(entry)

    def _read(self, read: FileRead) -> bool:
        """Store one file; false when there is none any more."""
        for left in range(READS - 1, -1, -1):
            if read.status != "ok":
                self.left_out += 1
                return False
            try:
                self._store(read, last=left == 0)
            except _Changed:
                read = next(iter(copying.read_files(self.target, [read.path])))
                continue
            return True
        return False

    def _store(self, read: FileRead, *, last: bool) -> None:
        entry = Entry(
            read.path, "file", read.mode, size=read.size, mtime_ns=read.mtime_ns,
            stat=b"" if last else self._trusted(read.stat), xattrs=read.xattrs, extents=read.extents,
        )  # fmt: skip
        self.writer.add_file(entry, self._data(read, last=last))

    def _data(self, read: FileRead, *, last: bool) -> Iterator[bytes]:
        for piece in read.data():
            self.progress.bytes += len(piece)
            yield piece
        if not last and not read.steady:
            raise _Changed

    def _trusted(self, stat: bytes) -> bytes:
        """A STAT that the next copy may rely on; none for what changed at the moment of the walk."""
        return stat if copying.settled(stat, self.clock_ns) else b""


class _Changed(Exception):
    """A file changed while it was read."""


def copy_in(target: Target, *, store: Store, root: str, stage: str | None, progress: Progress) -> None:
    """Write the tree ``root`` in the place of the disk behind ``target``; with ``stage`` beside it, for a swap."""
    reader = TreeReader(store, root)
    progress.total = reader.files
    copying.write_tree(target, _counted(reader, progress), stage=stage)


def require_whole(store: Store, root: str) -> None:
    """Raise :class:`DiskCopyFailed` when a part of the tree ``root`` is not there; asked before a disk is given up."""
    try:
        for blob, _ in blobs(store, root):
            if not store.has(blob):
                raise DiskCopyFailed(f"the blob {blob} of this version is missing")
    except (BlobMissing, BlobDamaged) as error:
        raise DiskCopyFailed(str(error)) from error
    except StoreUnavailable as error:
        raise ServiceUnavailable from error


def _counted(reader: TreeReader, progress: Progress) -> Iterator[tuple[Entry, Iterator[bytes]]]:
    for entry, data in reader.contents():
        yield entry, _counted_data(data, progress)
        progress.files += 1


def _counted_data(data: Iterator[bytes], progress: Progress) -> Iterator[bytes]:
    for piece in data:
        progress.bytes += len(piece)
        yield piece
