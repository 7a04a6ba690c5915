"""The end of a writing: from records to an index, a content hash and a root.

Passes over the spooled records, each at about a microsecond a record: which kept blobs are named and how much of each
(``survey``), the re-packing when some block deserves it (``repack.py``), and the one that makes segments and hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing

from nylorun.blobs import records
from nylorun.blobs.content import Manifest
from nylorun.blobs.errors import BadTree
from nylorun.blobs.index import SEGMENT, Root, Segment, pack_root, segment_ends
from nylorun.blobs.packer import Packer
from nylorun.blobs.reader import TreeReader
from nylorun.blobs.repack import Survey, repacked
from nylorun.blobs.sink import Sink
from nylorun.blobs.spool import Spool


class Finish:
    """One use: ``run``, then the results. ``first_names`` are the paths that ``hardlink`` of some record names."""

    def __init__(
        self,
        sink: Sink,
        packer: Packer,
        previous: TreeReader | None,
        first_names: set[bytes],
        abandoned: list[int],
    ) -> None:
        self.size = 0
        self.sha256 = b""
        self._sink = sink
        self._packer = packer
        self._previous = previous
        self._first_names = first_names
        self._abandoned = abandoned
        self._kept: dict[bytes, int] = {}
        self._segments: list[tuple[int, int, bytes]] = []

    def run(self, spool: Spool) -> bytes:
        """Everything but the root is added to the sink; returns the root's content."""
        with closing(Spool()) as packed:
            if self._previous:
                spool = self._kept_blobs(spool, packed, self._previous)
            self._index(spool)
        segments = []
        for number, entries, first in self._segments:
            name, size = self._sink.blob(number)
            segments.append(Segment(name, size, entries, first))
        files = sum(segment.entries for segment in segments)
        return pack_root(Root(files, self.size, self.sha256, tuple(segments)))

    def unused(self) -> set[bytes]:
        """Claimed blobs that the tree does not name."""
        if not self._abandoned:
            return set()
        gone = set(self._abandoned)
        used = {self._sink.blob(number)[0] for number in range(self._sink.count()) if number not in gone}
        return {self._sink.blob(number)[0] for number in gone} - used - self._kept.keys()

    def _kept_blobs(self, spool: Spool, packed: Spool, previous: TreeReader) -> Spool:
        """Claims the kept blobs but for those to be left; the records are in the result, when need be ``packed``."""
        survey = Survey.of(spool)
        victims = survey.victims()
        self._kept = {name: size for name, size in survey.kept.items() if name not in victims}
        for name, size in self._kept.items():
            self._sink.claim(name, size)
        if not victims:
            return spool
        for raw in repacked(spool, victims, previous, self._packer):
            packed.append(raw)
        self._packer.end()
        return packed

    def _index(self, spool: Spool) -> None:
        content = hashlib.sha256()
        manifest, segment = Manifest(content.update), _SegmentBuilder(self._end_segment)
        for raw in self._final(spool):
            manifest.add(raw)
            segment.add(raw)
        segment.end()
        manifest.end()
        self.sha256 = content.digest()

    def _final(self, spool: Spool) -> Iterator[bytes]:
        """The records with all names of blobs, and with later names of a file saying what the first says."""
        firsts: dict[bytes, tuple[int, bytes]] = {}
        blob = self._sink.blob
        unpack_from, begin = records.HEAD.unpack_from, records.HEAD.size + records.SHA256 + records.COUNT.size
        for spooled in spool:
            raw = spooled
            _, kind, flags, _, size, _, path, stat = unpack_from(raw)
            if kind == records.FILE:
                if flags & records.HARDLINK:
                    raw, size = _later_name(raw, firsts)
                elif records.is_pending(raw, begin + path + stat):
                    raw = records.named(raw, begin + path + stat, blob)
                if self._first_names:
                    self._note_first(raw, firsts)
            self.size += size
            yield raw

    def _note_first(self, raw: bytes, firsts: dict[bytes, tuple[int, bytes]]) -> None:
        path, fixed = records.path_of(raw), records.head(raw)
        if path in self._first_names and not fixed.flags & records.HARDLINK:
            at = records.sha256_at(fixed)
            firsts[path] = fixed.size, raw[at : at + records.SHA256]

    def _end_segment(self, content: bytes, entries: int, first: bytes) -> None:
        self._segments.append((self._sink.add(content), entries, first))


def _later_name(raw: bytes, firsts: dict[bytes, tuple[int, bytes]]) -> tuple[bytes, int]:
    fixed = records.head(raw)
    first = records.first_name(raw, fixed)
    if first not in firsts:
        raise BadTree(f"{first[:200]!r} is no file that a later name can be of.")
    size, sha256 = firsts[first]
    return records.with_content(raw, fixed, size, sha256), size


class _SegmentBuilder:
    """Collects records until a segment ends."""

    def __init__(self, done: Callable[[bytes, int, bytes], None]) -> None:
        self._done = done
        self._raws: list[bytes] = []
        self._size = 0

    def add(self, raw: bytes) -> None:
        self._raws.append(raw)
        self._size += len(raw)
        if segment_ends(raw, self._size):
            self.end()

    def end(self) -> None:
        if self._raws:
            self._done(SEGMENT + b"".join(self._raws), len(self._raws), records.path_of(self._raws[0]))
            self._raws.clear()
            self._size = 0
