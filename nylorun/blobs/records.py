"""Entries as bytes: the records an index segment is made of.

A record, little endian: HEAD (its own length, kind, flags, mode, size, mtime, lengths of path and stat), path, stat;
then for a file its SHA-256, the number of refs and the refs; for a link its target; then, as the flags say, the path
of the first name, the extents, the attributes. A record holds whole blob names, so it means the same in every tree
and an unchanged one is copied as it is.

While a tree is written, the names of its newest blobs are not known yet: a record then holds numbers in their place
(:func:`pending`), which :func:`named` replaces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from nylorun.blobs.entry import Entry, Kind, Ref

HEAD = struct.Struct("<IBBHQqHBx")
REF = struct.Struct("<32sIII")
COUNT = struct.Struct("<I")
_SHORT = struct.Struct("<H")
_EXTENT = struct.Struct("<QQ")
_XATTR = struct.Struct("<HI")
_PENDING = struct.Struct("<24xQII4x")  # a REF whose name is a number

FILE, DIR, LINK = 1, 2, 3
HARDLINK, EXTENTS, XATTRS = 1, 2, 4
SHA256 = 32
_KINDS: dict[int, Kind] = {FILE: "file", DIR: "dir", LINK: "link"}
_CODES = {kind: code for code, kind in _KINDS.items()}
_UNNAMED = bytes(24)

Extents = tuple[tuple[int, int], ...] | None


class Head(NamedTuple):
    """The fixed part of a record."""

    length: int
    kind: int
    flags: int
    mode: int
    size: int
    mtime_ns: int
    path: int
    stat: int


def head(raw: bytes) -> Head:
    """The fixed part of ``raw``."""
    return Head._make(HEAD.unpack_from(raw))


def pack(entry: Entry, sha256: bytes = b"", refs: bytes = b"") -> bytes:
    """The record of a checked entry; ``refs`` are packed refs."""
    flags, extras = _extras(entry)
    if entry.kind == "file":
        own = sha256 + COUNT.pack(len(refs) // REF.size) + refs
    elif entry.kind == "link":
        own = _SHORT.pack(len(entry.target)) + entry.target
    else:
        own = b""
    path, stat = entry.path, entry.stat
    length = HEAD.size + len(path) + len(stat) + len(own) + len(extras)
    fixed = HEAD.pack(length, _CODES[entry.kind], flags, entry.mode, entry.size, entry.mtime_ns, len(path), len(stat))
    return b"".join((fixed, path, stat, own, extras))


def pack_file(path: bytes, mode: int, size: int, mtime_ns: int, stat: bytes, sha256: bytes, refs: bytes) -> bytes:
    """The record of a plain file, as :func:`pack` makes it."""
    count = len(refs) // REF.size
    length = HEAD.size + len(path) + len(stat) + SHA256 + COUNT.size + len(refs)
    fixed = HEAD.pack(length, FILE, 0, mode, size, mtime_ns, len(path), len(stat))
    return b"".join((fixed, path, stat, sha256, COUNT.pack(count), refs))


def unpack(raw: bytes) -> Entry:
    """The entry of a record; raises ``ValueError`` when it is none."""
    try:
        return _unpack(raw)
    except (struct.error, KeyError) as failure:
        raise ValueError(f"a record of an index does not parse ({failure})") from failure


def path_of(raw: bytes) -> bytes:
    """The path of a record."""
    return raw[HEAD.size : HEAD.size + HEAD.unpack_from(raw)[6]]


def sha256_at(fixed: Head) -> int:
    """Where a file's SHA-256 begins in its record. The count of its refs and the refs follow it."""
    return HEAD.size + fixed.path + fixed.stat


def refs_of(raw: bytes, fixed: Head) -> Iterator[tuple[bytes, int, int, int]]:
    """A file's refs: (32 bytes of the blob's name, offset, length, size of the blob)."""
    start = sha256_at(fixed) + SHA256
    (count,) = COUNT.unpack_from(raw, start)
    start += COUNT.size
    return REF.iter_unpack(raw[start : start + count * REF.size])


def first_name(raw: bytes, fixed: Head) -> bytes:
    """The path of the first name, of a record with the flag HARDLINK (which has no refs)."""
    start = sha256_at(fixed) + SHA256 + COUNT.size
    (length,) = _SHORT.unpack_from(raw, start)
    return raw[start + _SHORT.size : start + _SHORT.size + length]


def target_at(raw: bytes, at: int) -> bytes:
    """The target of a link, ``at`` behind its path and stat."""
    (length,) = _SHORT.unpack_from(raw, at)
    return raw[at + _SHORT.size : at + _SHORT.size + length]


def pending(number: int, offset: int, length: int) -> bytes:
    """A packed ref to the blob that will be ``number``."""
    return _PENDING.pack(number, offset, length)


def is_pending(name: bytes, at: int = 0) -> bool:
    """Whether the ref that begins at ``at`` has a number still. A file's refs are all new or all kept."""
    return name.startswith(_UNNAMED, at)


def with_refs(raw: bytes, fixed: Head, refs: bytes) -> bytes:
    """The record with other refs of the same number."""
    start = sha256_at(fixed) + SHA256 + COUNT.size
    return raw[:start] + refs + raw[start + len(refs) :]


def named(raw: bytes, at: int, names: Callable[[int], tuple[bytes, int]]) -> bytes:
    """The record with every number replaced by the name and size of its blob; its refs begin at ``at``."""
    (count,) = COUNT.unpack_from(raw, at - COUNT.size)
    end = at + count * REF.size
    refs = []
    for number, offset, length in _PENDING.iter_unpack(raw[at:end]):
        name, size = names(number)
        refs.append(REF.pack(name, offset, length, size))
    return b"".join((raw[:at], *refs, raw[end:]))


def with_content(raw: bytes, fixed: Head, size: int, sha256: bytes) -> bytes:
    """The record of a later name with the size and hash of its first name."""
    at = sha256_at(fixed)
    begin = HEAD.pack(*fixed[:4], size, *fixed[5:])
    return begin + raw[HEAD.size : at] + sha256 + raw[at + SHA256 :]


def _unpack(raw: bytes) -> Entry:
    length, kind, flags, mode, size, mtime_ns, path_size, stat_size = HEAD.unpack_from(raw)
    at = HEAD.size + path_size
    end = at + stat_size
    path, stat = raw[HEAD.size : at], raw[at:end]
    sha256 = target = b""
    refs: tuple[Ref, ...] = ()
    if kind == FILE:
        sha256 = raw[end : end + SHA256]
        (count,) = COUNT.unpack_from(raw, end + SHA256)
        end += SHA256 + COUNT.size
        found = raw[end : end + count * REF.size]
        refs = tuple([Ref(name.hex(), *numbers) for name, *numbers in REF.iter_unpack(found)])
        end += count * REF.size
    elif kind == LINK:
        target = target_at(raw, end)
        end += _SHORT.size + len(target)
    hardlink: bytes | None = None
    extents: Extents = None
    xattrs: dict[bytes, bytes] = {}
    if flags:
        hardlink, extents, xattrs, end = _read_extras(raw, end, flags)
    if end != length or length != len(raw):
        raise struct.error("its length is wrong")
    return Entry(path, _KINDS[kind], mode, size, sha256, target, mtime_ns, stat, hardlink, xattrs, extents, refs)


def _extras(entry: Entry) -> tuple[int, bytes]:
    if entry.hardlink is None and entry.extents is None and not entry.xattrs:
        return 0, b""
    flags, parts = 0, []
    if entry.hardlink is not None:
        flags |= HARDLINK
        parts += [_SHORT.pack(len(entry.hardlink)), entry.hardlink]
    if entry.extents is not None:
        flags |= EXTENTS
        parts += [COUNT.pack(len(entry.extents)), *(_EXTENT.pack(*extent) for extent in entry.extents)]
    if entry.xattrs:
        flags |= XATTRS
        parts.append(_packed_xattrs(entry.xattrs))
    return flags, b"".join(parts)


def _packed_xattrs(xattrs: Mapping[bytes, bytes]) -> bytes:
    parts = [COUNT.pack(len(xattrs))]
    for name, value in sorted(xattrs.items()):
        parts += [_XATTR.pack(len(name), len(value)), name, value]
    return b"".join(parts)


def _read_extras(raw: bytes, at: int, flags: int) -> tuple[bytes | None, Extents, dict[bytes, bytes], int]:
    hardlink: bytes | None = None
    extents: Extents = None
    xattrs: dict[bytes, bytes] = {}
    if flags & HARDLINK:
        (count,) = _SHORT.unpack_from(raw, at)
        at += _SHORT.size
        hardlink, at = raw[at : at + count], at + count
    if flags & EXTENTS:
        (count,) = COUNT.unpack_from(raw, at)
        at += COUNT.size
        end = at + count * _EXTENT.size
        extents, at = tuple((one, two) for one, two in _EXTENT.iter_unpack(raw[at:end])), end
    if flags & XATTRS:
        (count,) = COUNT.unpack_from(raw, at)
        at += COUNT.size
        for _ in range(count):
            name, value = _XATTR.unpack_from(raw, at)
            at += _XATTR.size
            xattrs[raw[at : at + name]] = raw[at + name : at + name + value]
            at += name + value
    return hardlink, extents, xattrs, at
