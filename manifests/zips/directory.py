"""The central directory of a ZIP archive, walked entry by entry.

Only the plain form is taken: one disk, no encryption, nothing before the first entry, the directory right before its
end record (or that of ZIP64), and as many entries as the record says. At most ``most`` of them are ever read, so a
directory of any size costs a bounded amount of memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")
CENTRAL = struct.Struct("<4s6H3L5H2L")
_END, _END64, _LOCATOR, _CENTRAL = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x01\x02"
_COMMENT_MAX = 0xFFFF
_NAME_MAX = 4096 + 1  # a path and the mark of a folder
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_ZIP64 = 0x0001


class BadArchive(Exception):
    """No ZIP archive this product takes; the text goes on after "The archive"."""


class TooManyEntries(Exception):
    """More entries than were allowed."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of the directory, with its numbers as they are meant (ZIP64 resolved)."""

    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    attributes: int
    at: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the directory lies and how many entries it has."""

    start: int
    size: int
    entries: int


def extent(file: IO[bytes]) -> Extent:
    """Find the directory; raises :class:`BadArchive`."""
    length = file.seek(0, 2)
    tail = _read(file, max(0, length - END.size - _COMMENT_MAX), min(length, END.size + _COMMENT_MAX))
    at = _end_record(tail)
    if at is None:
        raise BadArchive("has no end record: it is cut short or no ZIP")
    _, disk, start_disk, here, entries, size, start, _ = END.unpack_from(tail, at)
    end = length - len(tail) + at
    found = _extent64(file, end, Extent(start, size, entries))
    if found is None:
        if disk != 0 or start_disk != 0 or here != entries:
            raise BadArchive("has several parts")
        found = Extent(start, size, entries), end
    directory, end = found
    if directory.start + directory.size != end:
        raise BadArchive("has bytes before its first entry or around its directory")
    return directory


def records(file: IO[bytes], directory: Extent, most: int) -> Iterator[Record]:
    """Every entry in the directory's order; raises :class:`TooManyEntries` before the first one too many."""
    if directory.entries > most:
        raise TooManyEntries
    at, end = directory.start, directory.start + directory.size
    for _ in range(directory.entries):
        record, at = _record(file, at, end)
        yield record
    if at != end:
        raise BadArchive("has a directory of another size than it says")


def _end_record(tail: bytes) -> int | None:
    """Where the end record stands: the last one whose comment reaches exactly to the end of the file."""
    at = tail.rfind(_END)
    while at >= 0:
        if at + END.size <= len(tail) and at + END.size + END.unpack_from(tail, at)[-1] == len(tail):
            return at
        at = tail.rfind(_END, 0, at)
    return None


def _extent64(file: IO[bytes], end: int, plain: Extent) -> tuple[Extent, int] | None:
    """What the ZIP64 record says, and where it begins; ``None`` when there is none."""
    if end < LOCATOR.size:
        return None
    mark, disk, at, disks = LOCATOR.unpack(_read(file, end - LOCATOR.size, LOCATOR.size))
    if mark != _LOCATOR:
        return None
    if at + END64.size > end - LOCATOR.size:
        raise BadArchive("has a broken end record")
    mark, size, _, _, here_disk, start_disk, here, entries, length, start = END64.unpack(_read(file, at, END64.size))
    if mark != _END64 or at + 12 + size != end - LOCATOR.size:
        raise BadArchive("has a broken end record")
    if disk != 0 or disks > 1 or here_disk != 0 or start_disk != 0 or here != entries:
        raise BadArchive("has several parts")
    told = ((plain.entries, entries, _FULL16), (plain.size, length, _FULL32), (plain.start, start, _FULL32))
    if any(short not in (full, long) for short, long, full in told):
        raise BadArchive("has two end records that differ")
    return Extent(start, length, entries), at


def _record(file: IO[bytes], at: int, end: int) -> tuple[Record, int]:
    if at + CENTRAL.size > end:
        raise BadArchive("has a directory that is cut short")
    fields = CENTRAL.unpack(_read(file, at, CENTRAL.size))
    mark, _, _, flags, method, _, _, crc, packed, size, name_size, extra_size, comment_size = fields[:13]
    disk, _, attributes, local = fields[13:]
    if mark != _CENTRAL:
        raise BadArchive("has a broken directory")
    if name_size > _NAME_MAX:
        raise BadArchive("has a name that is too long")
    after = at + CENTRAL.size + name_size + extra_size + comment_size
    if after > end:
        raise BadArchive("has a directory that is cut short")
    rest = _read(file, at + CENTRAL.size, name_size + extra_size)
    size, packed, local, disk = _wide(rest[name_size:], size, packed, local, disk)
    if disk != 0:
        raise BadArchive("has several parts")
    return Record(rest[:name_size], flags, method, crc, packed, size, attributes, local), after


def _wide(extra: bytes, *numbers: int) -> list[int]:
    """``size, packed, local, disk`` with those that do not fit their field taken from the ZIP64 extra field."""
    widths = ((_FULL32, "<Q"), (_FULL32, "<Q"), (_FULL32, "<Q"), (_FULL16, "<L"))
    if all(number != full for number, (full, _) in zip(numbers, widths, strict=True)):
        return list(numbers)
    field, found = _extra_field(extra, _ZIP64), []
    for number, (full, form) in zip(numbers, widths, strict=True):
        if number == full:
            width = struct.calcsize(form)
            if len(field) < width:
                raise BadArchive("has an entry without its size")
            number, field = struct.unpack(form, field[:width])[0], field[width:]
        found.append(number)
    return found


def _extra_field(extra: bytes, wanted: int) -> bytes:
    while len(extra) >= 4:
        kind, size = struct.unpack("<2H", extra[:4])
        if kind == wanted:
            return extra[4 : 4 + size]
        extra = extra[4 + size :]
    return b""


def _read(file: IO[bytes], at: int, size: int) -> bytes:
    file.seek(at)
    data = file.read(size)
    if len(data) != size:
        raise BadArchive("is cut short")
    return data
