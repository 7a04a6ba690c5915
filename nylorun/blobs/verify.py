"""Is a stored tree whole? Everything it names is read and every hash is made again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from nylorun.blobs import records
from nylorun.blobs.content import Manifest
from nylorun.blobs.entry import Entry, check_entry, data_size
from nylorun.blobs.errors import BadTree, BlobDamaged, BlobMissing
from nylorun.blobs.hashing import FileHash
from nylorun.blobs.order import Order
from nylorun.blobs.reader import TreeReader
from nylorun.blobs.store import Store


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: the blob it is in, the first entry that suffers from it (none: the index itself), what it is."""

    blob: str
    path: bytes | None
    reason: str


def verify(store: Store, root: str) -> Iterator[Problem]:
    """Every fault of a tree; nothing means that it is whole. Raises ``StoreUnavailable`` when the store fails.

    Each blob is checked against its name and size, each file against its SHA-256, entries against the rules of a tree,
    the totals and the content manifest against the root. A damaged blob is told once, however many files are in it.
    """
    try:
        reader = TreeReader(store, root)
    except (BlobMissing, BlobDamaged) as failure:
        yield Problem(root, None, str(failure))
        return
    yield from _Check(reader).run()


class _Check:
    """One use."""

    def __init__(self, reader: TreeReader) -> None:
        self._reader = reader
        self._order = Order()
        self._content = hashlib.sha256()
        self._manifest = Manifest(self._content.update)
        self._told: set[str] = set()

    def run(self) -> Iterator[Problem]:
        whole = True
        for segment in self._reader.segments():
            name = segment.name.hex()
            try:
                for raw in self._reader.segment(segment):
                    yield from self._entry(name, raw)
            except (BlobMissing, BlobDamaged, BadTree, ValueError) as failure:
                whole = False
                yield Problem(name, None, str(failure))
        if whole:
            yield from self._totals()

    def _entry(self, segment: str, raw: bytes) -> Iterator[Problem]:
        entry = records.unpack(raw)
        check_entry(entry)
        self._order.admit(entry.path, entry.size, entry.kind == "dir")
        self._manifest.add(raw)
        if entry.hardlink is not None:
            first = self._reader.find(entry.hardlink)
            if first is None or first.hardlink is not None or (first.sha256, first.size) != (entry.sha256, entry.size):
                yield Problem(segment, entry.path, "it is a later name of no such file")
        elif entry.kind == "file":
            yield from self._file(segment, entry)

    def _file(self, segment: str, entry: Entry) -> Iterator[Problem]:
        if sum(ref.length for ref in entry.refs) != data_size(entry):
            yield Problem(segment, entry.path, "its refs do not hold its data")
            return
        content, whole = FileHash(entry), True
        for ref in entry.refs:
            try:
                content.update(self._reader.blob(ref.blob, ref.size)[ref.offset : ref.offset + ref.length])
            except (BlobMissing, BlobDamaged) as failure:
                whole = False
                if ref.blob not in self._told:
                    self._told.add(ref.blob)
                    yield Problem(ref.blob, entry.path, str(failure))
        if whole and content.digest() != entry.sha256:
            yield Problem(segment, entry.path, "its content has another SHA-256")

    def _totals(self) -> Iterator[Problem]:
        self._manifest.end()
        told = (self._reader.files, self._reader.size, self._reader.sha256)
        if told != (self._order.files, self._order.size, f"sha256:{self._content.hexdigest()}"):
            yield Problem(self._reader.root, None, "the totals of the root are wrong")
