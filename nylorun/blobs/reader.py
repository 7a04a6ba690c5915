"""Reading a tree. Every byte that is returned was checked against the hash that names it, from the root downwards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

from nylorun.blobs import records
from nylorun.blobs.ahead import Fetched, fetch_ahead
from nylorun.blobs.blob import read_blob
from nylorun.blobs.cache import BlobCache
from nylorun.blobs.content import manifest_of, sha256_text
from nylorun.blobs.entry import Entry, Ref, Span, data_size, window
from nylorun.blobs.errors import BlobDamaged
from nylorun.blobs.index import Segment, unpack_root
from nylorun.blobs.index import records as records_in
from nylorun.blobs.plans import Part, Step, parts_of, steps_of, zeros
from nylorun.blobs.store import Store


class TreeReader:
    """One stored tree, for one thread at a time. All reading raises ``BlobMissing``, ``BlobDamaged``,
    ``StoreUnavailable``.

    ``sha256`` is of the content manifest, ``size`` the sum of the file sizes, ``files`` the number of entries.
    """

    def __init__(self, store: Store, root: str) -> None:
        content = read_blob(store, root)
        try:
            self._root = unpack_root(content)
        except ValueError as failure:
            raise BlobDamaged(root, str(failure)) from failure
        self.root = root
        self.sha256 = sha256_text(self._root.sha256)
        self.size = self._root.size
        self.files = self._root.files
        self._root_size = len(content)
        self._cache = BlobCache(store)
        self._load = self._cache.get

    def entries(self) -> Iterator[Entry]:
        """Every entry, in order."""
        return map(self._unpacked, self._raws())

    def raw_entries(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Every entry as (path, stat, record), for comparing and ``TreeWriter.keep``: about a microsecond an entry."""
        unpack_from, begin = records.HEAD.unpack_from, records.HEAD.size
        for raw in self._raws():
            _, _, _, _, _, _, path, stat = unpack_from(raw)
            end = begin + path
            yield raw[begin:end], raw[end : end + stat], raw

    def find(self, path: bytes) -> Entry | None:
        """The entry of this path."""
        for entry in self._from(path):
            return entry if entry.path == path else None
        return None

    def below(self, prefix: bytes) -> Iterator[Entry]:
        """Every entry under the folder ``prefix``, in order, without the folder; ``b""`` is the whole tree."""
        if not prefix:
            yield from self.entries()
            return
        for entry in self._from(prefix + b"/"):
            if not entry.path.startswith(prefix + b"/"):
                return
            yield entry

    def read(self, entry: Entry, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The bytes ``[offset, offset + length)`` of a file, holes as zeros, later names like first ones.

        What lies beyond the end is left out. No piece is empty or longer than 4 MiB.
        """
        entry = self._with_refs(entry)
        for part, data in self._fetch(entry, window(entry, max(offset, 0), length)):
            if data:
                yield data[part.first : part.last]
            else:
                yield from zeros(part.last)

    def extents_data(self, entry: Entry) -> Iterator[bytes]:
        """The data of a file's extents; nothing for a later name."""
        if entry.refs:
            for part, data in self._fetch(entry, [Span(0, data_size(entry))]):
                yield data[part.first : part.last]

    def contents(self) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Every entry in order, each with its ``extents_data``, read ahead: the way to restore a tree.

        An iterator of data is good until the next entry is asked for; what was not taken from it is passed over.
        """
        fetched = fetch_ahead(self._load, steps_of(self.entries()))
        for step, data in fetched:
            if step.number == 0:
                yield step.entry, _data_of(step.entry, data, fetched)

    def blob(self, blob: str, size: int) -> bytes:
        """The verified content of a blob that the tree names."""
        return self._load(blob, size)

    def segments(self) -> tuple[Segment, ...]:
        """The parts of the index."""
        return self._root.segments

    def segment_names(self) -> Iterator[bytes]:
        """The names of the blobs the index consists of."""
        return (segment.name for segment in self._root.segments)

    def segment(self, segment: Segment) -> Iterator[bytes]:
        """The records of one part of the index."""
        return _parsed(segment.name.hex(), self._load(segment.name.hex(), segment.size))

    def own_blobs(self) -> Iterator[tuple[str, int]]:
        """Root and index, with their sizes."""
        yield self.root, self._root_size
        for segment in self._root.segments:
            yield segment.name.hex(), segment.size

    def content_blobs(self) -> Iterator[tuple[str, int]]:
        """The blobs of the files, with their sizes; one may come many times."""
        for raw in self._raws():
            fixed = records.head(raw)
            if fixed.kind == records.FILE:
                for name, _, _, size in records.refs_of(raw, fixed):
                    yield name.hex(), size

    def _fetch(self, entry: Entry, wanted: Iterable[Span]) -> Iterator[Fetched[Part]]:
        parts = parts_of(entry.refs, wanted)
        if len(entry.refs) > 1:
            return fetch_ahead(self._load, parts)
        return ((part, self._load(ref.blob, ref.size) if ref else b"") for part, ref in parts)

    def _raws(self) -> Iterator[bytes]:
        names = [segment.name.hex() for segment in self._root.segments]
        sizes = [segment.size for segment in self._root.segments]
        wanted = ((name, Ref(name, 0, size, size)) for name, size in zip(names, sizes, strict=True))
        for name, content in fetch_ahead(self._load, wanted):
            yield from _parsed(name, content)

    def _unpacked(self, raw: bytes) -> Entry:
        try:
            return records.unpack(raw)
        except ValueError as failure:
            raise BlobDamaged(self.root, str(failure)) from failure

    def _from(self, path: bytes) -> Iterator[Entry]:
        """Entries from the first one on that does not sort before ``path``."""
        start = max(bisect_right(self._root.segments, path, key=lambda segment: segment.first) - 1, 0)
        for segment in self._root.segments[start:]:
            for raw in self.segment(segment):
                if records.path_of(raw) >= path:
                    yield self._unpacked(raw)

    def _with_refs(self, entry: Entry) -> Entry:
        if entry.hardlink is None:
            return entry
        first = self.find(entry.hardlink)
        if first is None:
            raise BlobDamaged(self.root, f"{entry.path[:200]!r} is a later name of nothing")
        return first


def _parsed(name: str, content: bytes) -> Iterator[bytes]:
    try:
        yield from records_in(content)
    except ValueError as failure:
        raise BlobDamaged(name, str(failure)) from failure


def _data_of(entry: Entry, data: bytes, fetched: Iterator[Fetched[Step]]) -> Iterator[bytes]:
    """The data of one entry whose first blob is at hand; its others come from ``fetched``."""
    for number, ref in enumerate(entry.refs):
        if number:
            _, data = next(fetched)
        yield data[ref.offset : ref.offset + ref.length]


def blobs(store: Store, root: str) -> Iterator[tuple[str, int]]:
    """Every blob that a tree names, each once, with its uncompressed size: root, index, contents."""
    reader = TreeReader(store, root)
    seen: set[str] = set()
    for name, size in chain(reader.own_blobs(), reader.content_blobs()):
        if name not in seen:
            seen.add(name)
            yield name, size


def content_manifest(reader: TreeReader) -> Iterator[bytes]:
    """The canonical JSON whose SHA-256 ``reader.sha256`` is, in pieces."""
    return manifest_of(raw for _, _, raw in reader.raw_entries())
