"""Reading a ZIP archive that may be hostile: everything is checked before a byte of it is unpacked.

A reader may rely on:
  * every path is relative, UTF-8 and plain (:mod:`manifests.zips.names`); none comes twice, none is a file and a
    folder; every folder above a member is a member; upper and lower case are kept apart;
  * members are files and folders only, stored or deflated, not encrypted; the bytes of no two of them overlap;
  * a member gives exactly the bytes its directory entry promises, size and CRC, or raises :class:`BadArchive`: what is
    unpacked is never more than :attr:`Archive.size`.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from manifests.zips.directory import BadArchive, Extent, Record, TooManyEntries, extent, records
from manifests.zips.names import path_fault

__all__ = ["Archive", "BadArchive", "Member", "TooManyEntries"]

PIECE = 64 << 10
STORED, DEFLATED = 0, 8
_LOCAL = struct.Struct("<4s5H3L2H")
_LOCAL_MARK = b"PK\x03\x04"
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_PATCHED = 0x0020
_DOS_FOLDER = 0x10


@dataclass(frozen=True, slots=True)
class Member:
    """A file (``record`` says where its bytes are) or a folder of an archive."""

    path: str
    record: Record | None = None

    @property
    def folder(self) -> bool:
        """Whether it is a folder."""
        return self.record is None

    @property
    def size(self) -> int:
        """Bytes when unpacked."""
        return 0 if self.record is None else self.record.size


class Archive:
    """The members of an archive, sorted by the bytes of their paths. ``file`` stays open while it is read."""

    def __init__(self, file: IO[bytes], *, most: int) -> None:
        """Check everything; raises :class:`BadArchive`, or :class:`TooManyEntries` beyond ``most`` members."""
        self._file = file
        directory = extent(file)
        found = list(records(file, directory, most))
        self._begins = self._checked_places(found, directory)
        members = _Members(most)
        for record in found:
            members.add(record)
        self.members: list[Member] = members.sorted()
        self.size = sum(member.size for member in self.members)

    def read(self, member: Member) -> Iterator[bytes]:
        """The bytes of a file, in pieces, compared with its size and CRC; raises :class:`BadArchive`."""
        record = member.record
        if record is None:
            return
        packed = self._packed(record)
        crc = size = 0
        for piece in packed if record.method == STORED else _inflated(packed):
            size += len(piece)
            if size > record.size:
                break
            crc = zlib.crc32(piece, crc)
            yield piece
        if size != record.size or crc != record.crc:
            raise BadArchive(f"has another content of {member.path} than it says")

    def _packed(self, record: Record) -> Iterator[bytes]:
        at, left = self._begins[record.at], record.packed
        while left:
            self._file.seek(at)
            piece = self._file.read(min(PIECE, left))
            if not piece:
                raise BadArchive("is cut short")
            at, left = at + len(piece), left - len(piece)
            yield piece

    def _checked_places(self, found: Iterable[Record], directory: Extent) -> dict[int, int]:
        """Where the bytes of each entry begin, by the place of its local header; none may reach into another."""
        begins: dict[int, int] = {}
        reached = 0
        for record in sorted(found, key=lambda record: record.at):
            if record.at < reached:
                raise BadArchive("has entries that overlap")
            begins[record.at] = self._begin(record)
            reached = begins[record.at] + record.packed
        if reached > directory.start:
            raise BadArchive("has entries that overlap")
        return begins

    def _begin(self, record: Record) -> int:
        self._file.seek(record.at)
        header = self._file.read(_LOCAL.size)
        if len(header) != _LOCAL.size:
            raise BadArchive("is cut short")
        name_size: int
        extra_size: int
        mark, _, flags, method, _, _, _, _, _, name_size, extra_size = _LOCAL.unpack(header)
        if mark != _LOCAL_MARK or method != record.method or flags & _ENCRYPTED or name_size != len(record.name):
            raise BadArchive("has an entry that its directory describes otherwise")
        if self._file.read(name_size) != record.name:
            raise BadArchive("has an entry that its directory names otherwise")
        return record.at + _LOCAL.size + name_size + extra_size


class _Members:
    """Collects members by path, with every folder above them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_path: dict[str, Member] = {}
        self._said: set[str] = set()

    def add(self, record: Record) -> None:
        path = _checked(record)
        if path in self._said:
            raise BadArchive(f"has {path} twice")
        self._said.add(path)
        folder = record.name.endswith(b"/")
        before = self._by_path.get(path)
        if before is not None and not (before.folder and folder):
            raise BadArchive(f"has {path} as a file and as a folder")
        self._put(Member(path, None if folder else record))
        parent = path.rpartition("/")[0]
        while parent and parent not in self._by_path:
            self._put(Member(parent))
            parent = parent.rpartition("/")[0]
        if parent and not self._by_path[parent].folder:
            raise BadArchive(f"has {parent} as a file and as a folder")

    def sorted(self) -> list[Member]:
        return sorted(self._by_path.values(), key=lambda member: member.path.encode())

    def _put(self, member: Member) -> None:
        self._by_path[member.path] = member
        if len(self._by_path) > self._most:
            raise TooManyEntries


def _checked(record: Record) -> str:
    """The path of an entry that may be taken; raises :class:`BadArchive`."""
    try:
        name = record.name.decode("utf-8")
    except UnicodeDecodeError:
        raise BadArchive("has a name that is not UTF-8") from None
    shown = name if name.isprintable() and len(name) <= 200 else "an entry"
    path = name.removesuffix("/")
    fault = path_fault(path) or _kind_fault(record)
    if fault is not None:
        raise BadArchive(f"has {shown}, which {fault}")
    return path


def _kind_fault(record: Record) -> str | None:
    folder = record.name.endswith(b"/")
    kind = stat.S_IFMT(record.attributes >> 16)
    if record.flags & _ENCRYPTED:
        return "is encrypted"
    if record.method not in (STORED, DEFLATED) or record.flags & _PATCHED:
        return "is compressed in another way than deflate"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is neither a file nor a folder"
    if folder != (kind == stat.S_IFDIR) and kind != 0:
        return "is a folder by its kind or by its name, but not both"
    if folder and record.size:
        return "is a folder with bytes of its own"
    if not folder and kind == 0 and record.attributes & _DOS_FOLDER:
        return "is a folder by its kind or by its name, but not both"
    return None


def _inflated(packed: Iterator[bytes]) -> Iterator[bytes]:
    """Unpack a deflated stream in bounded pieces; it must end exactly where its bytes end."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for piece in packed:
            rest = piece
            while rest:
                if inflater.eof:
                    raise BadArchive("has bytes behind the end of an entry")
                yield inflater.decompress(rest, PIECE)
                rest = inflater.unconsumed_tail or inflater.unused_data
        yield inflater.flush()
    except zlib.error:
        raise BadArchive("has an entry that does not unpack") from None
    if not inflater.eof or inflater.unused_data:
        raise BadArchive("has an entry that does not unpack")
