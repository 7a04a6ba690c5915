"""One name of a tree, and what makes it legal.

Everything here is bytes: a file system's names need be no text. :func:`check_entry` is what a writer demands; a reader
returns only what a writer accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nylorun.blobs.errors import BadTree

Kind = Literal["file", "dir", "link"]

PATH_MAX = 65_535
STAT_MAX = 64
_LONG = 1 << 63


class Ref(NamedTuple):
    """``length`` bytes at ``offset`` of the blob ``blob``, which has ``size`` bytes uncompressed."""

    blob: str
    offset: int
    length: int
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a tree.

    ``path`` is relative and '/'-separated; any byte but NUL. ``mode`` holds the permission bits (``& 0o7777``).
    ``size`` is a file's apparent size, holes included. ``sha256`` (32 bytes, of the apparent content) and ``refs``
    are filled in by the writer. ``stat`` is the copier's own note to recognise an unchanged file by, at most 64
    bytes; ``b""`` means: never trust. ``hardlink`` is the path of the first name of the same file; such an entry has
    no ``refs``. ``extents`` are the parts that hold data, ``None``: all of it. ``xattrs`` has names that begin with
    ``user.``.
    """

    path: bytes
    kind: Kind
    mode: int
    size: int = 0
    sha256: bytes = b""
    target: bytes = b""
    mtime_ns: int = 0
    stat: bytes = b""
    hardlink: bytes | None = None
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)
    extents: tuple[tuple[int, int], ...] | None = None
    refs: tuple[Ref, ...] = ()


class Span(NamedTuple):
    """``length`` bytes of a file: a hole (``at`` is None) or data that begins at ``at`` among the data of its
    extents."""

    at: int | None
    length: int


def data_size(entry: Entry) -> int:
    """How many bytes of data a file has: its size without its holes; none for a later name of a file."""
    if entry.hardlink is not None:
        return 0
    return entry.size if entry.extents is None else sum(length for _, length in entry.extents)


def spans(entry: Entry) -> Iterator[Span]:
    """A file's content from its beginning to its end, holes and data in turn."""
    at = position = 0
    for offset, length in ((0, entry.size),) if entry.extents is None else entry.extents:
        if offset > position:
            yield Span(None, offset - position)
        if length:
            yield Span(at, length)
        at, position = at + length, offset + length
    if position < entry.size:
        yield Span(None, entry.size - position)


def window(entry: Entry, offset: int, length: int | None) -> Iterator[Span]:
    """Those parts of :func:`spans` that lie in ``[offset, offset + length)``; beyond the end there is nothing."""
    end = entry.size if length is None else min(entry.size, offset + length)
    position = 0
    for at, span in spans(entry):
        first, last = max(position, offset), min(position + span, end)
        if first < last:
            yield Span(None if at is None else at + first - position, last - first)
        position += span


def check_path(path: bytes) -> None:
    """Raises ``BadTree`` unless ``path`` names something below a folder, in the one way to write it."""
    slashed = b"/" + path + b"/"
    if b"//" in slashed or b"/./" in slashed or b"/../" in slashed or b"\0" in path or len(path) > PATH_MAX:
        raise BadTree(f"{path[:200]!r} is no path inside a tree.")


def check_plain(path: bytes, mode: int, mtime_ns: int, stat: bytes) -> None:
    """Raises ``BadTree`` when a field that every entry has is none the format can hold."""
    check_path(path)
    if not 0 <= mode <= 0o7777 or not -_LONG <= mtime_ns < _LONG or len(stat) > STAT_MAX:
        raise BadTree(f"{path[:200]!r}: its mode, time or stat is out of range.")


def check_entry(entry: Entry) -> None:
    """Raises ``BadTree`` when a field of ``entry`` is none the format can hold. Order is checked elsewhere."""
    check_plain(entry.path, entry.mode, entry.mtime_ns, entry.stat)
    if entry.xattrs:
        _check_xattrs(entry)
    if entry.kind != "file":
        _check_no_file(entry)
    elif entry.target or not 0 <= entry.size < _LONG:
        raise _bad(entry, "a file has a size and no target")
    else:
        _check_file(entry)


def _check_no_file(entry: Entry) -> None:
    if entry.kind not in ("dir", "link"):
        raise _bad(entry, f"{entry.kind!r} is no kind")
    if entry.size or entry.hardlink is not None or entry.extents is not None:
        raise _bad(entry, "only files have a size, names and holes")
    if (entry.kind == "link") != bool(entry.target) or b"\0" in entry.target or len(entry.target) > PATH_MAX:
        raise _bad(entry, "a link, and nothing else, has a target")


def _check_file(entry: Entry) -> None:
    if entry.hardlink is not None:
        check_path(entry.hardlink)
        if entry.hardlink >= entry.path or entry.extents is not None:
            raise _bad(entry, "the first name of its file sorts before it and holds the extents")
    end = 0
    for offset, length in entry.extents or ():
        if offset < end or length <= 0:
            raise _bad(entry, "its extents overlap, are empty or out of order")
        end = offset + length
    if end > entry.size:
        raise _bad(entry, "an extent reaches beyond its end")


def _check_xattrs(entry: Entry) -> None:
    for name in entry.xattrs:
        if not name.startswith(b"user.") or b"\0" in name or len(name) > 255:
            raise _bad(entry, f"{name[:300]!r} is no name of a user attribute")


def _bad(entry: Entry, reason: str) -> BadTree:
    return BadTree(f"{entry.path[:200]!r}: {reason}.")
