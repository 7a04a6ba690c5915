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
from dataclasses import dataclass

from environments.compute import copying
from environments.compute.copying import FileRead, Held, Listed, Stat, Target
from environments.services.versions import Copied
from environments.tools.twin import Twin
from nylorun.blobs import (
    BlobDamaged,
    BlobMissing,
    Claim,
    Entry,
    Store,
    TreeReader,
    TreeWriter,
)

FILES_MAX = 1_000_000
READS = 3
WINDOW, WINDOW_BYTES = 20_000, 8 << 20
"""Entries, and content that came with them, that wait for the next batch of file reads."""


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
    heal: bool = False,
) -> Copied:
    """Copy the tree behind ``target`` into ``store``; ``previous`` is the root it is compared with.

    A previous tree that is damaged is not relied on: everything is read then, which also stores what was missing. So
    it is with ``heal``, which says that the damage is known.
    """
    if heal:
        return _copy_out(target, store, claim, None, most_bytes, hold, progress, twin, heal=True)
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
    with TreeWriter(
        store, claim, reader, max_entries=FILES_MAX, max_bytes=most_bytes, heal=heal, claim_aside=True
    ) as writer:
        with still as held:
            with copying.list_tree(target, content=reader is None, most_entries=FILES_MAX) as listing:
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


class _Copy:
    """The entries of one pass: written as they come, or waiting in order until the files among them are read.

    Runs for every entry of a disk. ``left_out`` counts files that could not be read.
    """

    def __init__(self, target: Target, writer: TreeWriter, progress: Progress, clock_ns: int) -> None:
        self.left_out = 0
        self._target = target
        self._writer = writer
        self._progress = progress
        self._clock_ns = clock_ns
        self._waiting: list[Listed | bytes] = []
        self._waiting_bytes = 0
        self._first_names: dict[int, bytes] = {}
        self._unread: set[int] = set()

    def take(self, listed: Listed, raw: bytes | None) -> None:
        """Take the next entry of the walk."""
        found = listed.found
        several = found.kind == "file" and found.nlink > 1
        one = listed if raw is None or several else raw
        if not self._waiting and (one is raw or listed.has_content or found.kind != "file"):
            self._write(one, iter(()))
            return
        self._waiting.append(one)
        self._waiting_bytes += len(listed.extra)
        if len(self._waiting) >= WINDOW or self._waiting_bytes >= WINDOW_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits, reading its files in one pass."""
        reads = iter(copying.read_files(self._target, list(self._paths())))
        for one in self._waiting:
            self._write(one, reads)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _write(self, one: Listed | bytes, reads: Iterator[FileRead]) -> None:
        if isinstance(one, bytes):
            self._writer.keep(one)
        elif one.has_content:
            self._whole(one)
        elif one.found.kind == "file":
            self._file(one, reads)
        else:
            self._plain(one)
        self._progress.files += 1

    def _paths(self) -> Iterator[bytes]:
        """Of the files to read: of several names of one file, only the first."""
        for one in self._waiting:
            if isinstance(one, bytes) or one.has_content or one.found.kind != "file":
                continue
            path, found = one.path, one.found
            if found.nlink == 1 or self._first_names.setdefault(found.ino, path) == path:
                yield path

    def _whole(self, listed: Listed) -> None:
        """Store a small file that came with its content."""
        found = listed.found
        self._progress.bytes += found.size
        self._writer.add_small_file(
            listed.path, listed.extra, mode=found.mode, mtime_ns=found.mtime_ns, stat=self._trusted(listed.stat, found)
        )

    def _plain(self, listed: Listed) -> None:
        found = listed.found
        entry = Entry(
            listed.path, found.kind, found.mode, target=listed.target, mtime_ns=found.mtime_ns,
            stat=self._trusted(listed.stat, found), xattrs=listed.xattrs,
        )  # fmt: skip
        add = self._writer.add_dir if found.kind == "dir" else self._writer.add_link
        add(entry)

    def _file(self, listed: Listed, reads: Iterator[FileRead]) -> None:
        """Store a file, or one more name of it. One whose first name could not be read is tried by the next."""
        found = listed.found
        first = self._first_names.get(found.ino, listed.path) if found.nlink > 1 else listed.path
        if first == listed.path:
            if not self._read(next(reads)):
                self._unread.add(found.ino)
        elif found.ino not in self._unread:
            entry = Entry(listed.path, "file", found.mode, size=found.size, mtime_ns=found.mtime_ns, hardlink=first)
            self._writer.add_file(entry)
        else:
            alone = copying.read_files(self._target, [listed.path])
            if self._read(next(alone)):
                self._first_names[found.ino] = listed.path
                self._unread.discard(found.ino)

    def _read(self, read: FileRead) -> bool:
        """Store one file; false when there is none any more."""
        for left in range(READS - 1, -1, -1):
            if read.status != "ok":
                self.left_out += 1
                return False
            try:
                self._store(read, last=left == 0)
            except _Changed:
                again = copying.read_files(self._target, [read.path])  # its call ends with it, and so would the data
                read = next(again)
                continue
            return True
        return False

    def _store(self, read: FileRead, *, last: bool) -> None:
        found = read.found
        entry = Entry(
            read.path, "file", found.mode, size=found.size, mtime_ns=found.mtime_ns,
            stat=b"" if last else self._trusted(read.stat, found), xattrs=read.xattrs, extents=read.extents,
        )  # fmt: skip
        self._writer.add_file(entry, self._data(read, last=last))

    def _data(self, read: FileRead, *, last: bool) -> Iterator[bytes]:
        for piece in read.data():
            self._progress.bytes += len(piece)
            yield piece
        if not last and not read.steady:
            raise _Changed

    def _trusted(self, stat: bytes, found: Stat) -> bytes:
        """A STAT that the next copy may rely on; none for what changed at the moment of the walk."""
        return stat if copying.settled(found, self._clock_ns) else b""


class _Changed(Exception):
    """A file changed while it was read."""


def copy_in(target: Target, *, store: Store, root: str, stage: str | None, progress: Progress) -> None:
    """Write the tree ``root`` in the place of the disk behind ``target``; with ``stage`` beside it, for a swap."""
    reader = TreeReader(store, root)
    progress.total = reader.files
    copying.write_tree(target, _counted(reader, progress), stage=stage)


def _counted(reader: TreeReader, progress: Progress) -> Iterator[tuple[Entry, Iterator[bytes]]]:
    for entry, data in reader.contents():
        yield entry, _counted_data(data, progress)
        progress.files += 1


def _counted_data(data: Iterator[bytes], progress: Progress) -> Iterator[bytes]:
    for piece in data:
        progress.bytes += len(piece)
        yield piece
