"""The index of a tree: records cut into segments by content, and the root that names the segments.

A segment is one blob: a versioned mark, then records in order of their paths. Where a segment ends depends on its
records alone, so one changed entry changes one small segment. The root, also a blob, holds the totals, the hash of the
content manifest and of each segment its name, size, number of entries and first path. Equal trees have equal roots.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from nylorun.blobs.records import HEAD

SEGMENT = b"nylS\x01"
ROOT = b"nylR\x01"
SEGMENT_MIN, SEGMENT_STEP, SEGMENT_MAX = 32 << 10, 96 << 10, 512 << 10
_TOTALS = struct.Struct("<QQ32sI")
_SEGMENT = struct.Struct("<32sIIH")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment as the root names it; ``size`` in bytes uncompressed, ``first`` the path of its first entry."""

    name: bytes
    size: int
    entries: int
    first: bytes


@dataclass(frozen=True, slots=True)
class Root:
    """A whole tree: number of entries, sum of file sizes, hash of the content manifest, segments."""

    files: int
    size: int
    sha256: bytes
    segments: tuple[Segment, ...]


def segment_ends(raw: bytes, size: int) -> bool:
    """Whether a segment of ``size`` bytes ends after its last record ``raw``. Longer records end one more often."""
    if size < SEGMENT_MIN:
        return False
    return size >= SEGMENT_MAX or zlib.crc32(raw) * SEGMENT_STEP < len(raw) << 32


def records(segment: bytes) -> Iterator[bytes]:
    """The records of a segment's content; raises ``ValueError`` when it is none."""
    if not segment.startswith(SEGMENT):
        raise ValueError("it is no segment of an index")
    at, end = len(SEGMENT), len(segment)
    while at < end:
        if end - at < HEAD.size:
            raise ValueError("its last record is cut off")
        (length,) = _LENGTH.unpack_from(segment, at)
        if not HEAD.size <= length <= end - at:
            raise ValueError("the length of a record is wrong")
        yield segment[at : at + length]
        at += length


def pack_root(root: Root) -> bytes:
    """The content of the root's blob."""
    parts = [ROOT, _TOTALS.pack(root.files, root.size, root.sha256, len(root.segments))]
    for segment in root.segments:
        parts.append(_SEGMENT.pack(segment.name, segment.size, segment.entries, len(segment.first)))
        parts.append(segment.first)
    return b"".join(parts)


def unpack_root(data: bytes) -> Root:
    """The root in a blob's content; raises ``ValueError`` when it is none."""
    if not data.startswith(ROOT):
        raise ValueError("it is no root of a tree")
    at = len(ROOT)
    try:
        files, size, sha256, count = _TOTALS.unpack_from(data, at)
        at += _TOTALS.size
        segments = []
        for _ in range(count):
            name, length, entries, path = _SEGMENT.unpack_from(data, at)
            at += _SEGMENT.size
            segments.append(Segment(name, length, entries, data[at : at + path]))
            at += path
    except struct.error as failure:
        raise ValueError(f"the root does not parse ({failure})") from failure
    if at != len(data):
        raise ValueError("the root has a wrong length")
    return Root(files, size, sha256, tuple(segments))
