"""What disk copies say to each other: the records of ``tree.list``, ``tree.read`` and ``tree.write``, for both ends.

All numbers are little endian. Paths are bytes, relative, ``/`` between their components; times are nanoseconds since
1970, cut to what 64 bits hold (the year 2262). Records follow each other without regard to frames.

  * ``tree.list``: ``CLOCK``, then groups of entries: ``GROUP`` (their number, the bytes of their paths and of their
    extras), a ``LISTED`` of each (lengths of path and extra, whether the extra is content, ``STAT``), all paths, all
    extras. The extra of a link is its target, of a folder its packed attributes, of a file its content or nothing.
  * ``tree.read`` asks with ``LENGTH`` and path each, and answers with ``READ`` (status, ``STAT``, length of attributes,
    number of extents), attributes, extents, data, ``READ_END`` (``STAT`` afterwards, whether data is missing and zeros
    were put in its place). A status other than ``OK`` is followed by the next path's record.
  * ``tree.write``: ``WRITE`` (kind, mode, time, size, lengths of path, target and attributes, number of extents), path,
    target (of a link, or the first name of the same file), attributes, extents, data.

A reader may rely on: what ``Inflow``, ``Order`` and the ``unpack_…`` functions let pass is within the bounds below, and
anything else is :class:`BadRecord`. Standard library only: this file also runs inside sandboxes.
"""

from __future__ import annotations

import os
import stat
from struct import Struct, error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FILE, FOLDER, LINK, NAME = 1, 2, 3, 4  # NAME: one more name of a file that was written before
OK, MISSING, UNREADABLE, OTHER = 0, 1, 2, 3
PATH_MAX = 65_535
TARGET_MAX = 65_535
XATTRS_MAX = 256 * 1024
EXTENTS_MAX = 16_384
WHOLE = 0xFFFF_FFFF  # in the place of a number of extents: no holes
SIZE_MAX = 1 << 62
PIECE = 128 * 1024
READ_BATCH = 1 << 20  # bytes of one request of ``tree.read``

CLOCK = Struct("<q")
LENGTH = Struct("<H")
STAT = Struct("<BHIQqqQ")
GROUP = Struct("<HII")
GROUP_MAX = 1024  # entries of a group
LISTED = Struct(f"<HI?{STAT.size}s")
LISTED_FIELDS = Struct("<HI?" + STAT.format.lstrip("<"))  # the same bytes
READ = Struct(f"<B{STAT.size}sII")
READ_END = Struct(f"<{STAT.size}sB")
WRITE = Struct("<BHqQHHII")
EXTENT = Struct("<QQ")
_XATTR = Struct("<BI")
_TIME_MAX = (1 << 63) - 1
_KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFLNK: LINK}

Extents = tuple[tuple[int, int], ...]  # offset and length


class BadRecord(Exception):
    """The other end sent what it may not send; the text says what."""


def kind_of(mode: int) -> int | None:
    """The kind of an entry by its ``st_mode``; ``None`` for sockets, pipes and devices."""
    return _KINDS.get(mode & 0o170000)


def pack_stat(status: os.stat_result, kind: int) -> bytes:
    """The ``STAT`` of an entry; a folder has size 0."""
    size = 0 if kind == FOLDER else status.st_size
    mode, made, changed = status.st_mode & 0o7777, status.st_mtime_ns, status.st_ctime_ns
    try:
        return STAT.pack(kind, mode, status.st_nlink, size, made, changed, status.st_ino)
    except error:
        return STAT.pack(kind, mode, status.st_nlink, size, fitted(made), fitted(changed), status.st_ino)


def fitted(time_ns: int) -> int:
    """The time, or the nearest one that a record holds."""
    return max(-_TIME_MAX, min(_TIME_MAX, time_ns))


# ----------------------------------------------------------------------------------------------------------- attributes


def read_xattrs(handle: int) -> bytes:
    """The ``user.*`` attributes behind a handle, packed and sorted; what does not fit, or vanishes, is left out."""
    try:
        names = os.listxattr(handle)
    except OSError:  # a file system without any
        return b""
    if not names:
        return b""
    found: dict[bytes, bytes] = {}
    for name in names:
        if name.startswith("user."):
            try:
                found[os.fsencode(name)] = os.getxattr(handle, name)
            except OSError:
                continue
    return pack_xattrs(found)


def pack_xattrs(xattrs: dict[bytes, bytes]) -> bytes:
    """Attributes as bytes, sorted by name, at most ``XATTRS_MAX``."""
    packed, room = [], XATTRS_MAX
    for name in sorted(xattrs):
        room -= _XATTR.size + len(name) + len(xattrs[name])
        if room < 0:
            break
        packed += [_XATTR.pack(len(name), len(xattrs[name])), name, xattrs[name]]
    return b"".join(packed)


def unpack_xattrs(data: bytes) -> dict[bytes, bytes]:
    """The attributes in ``data``; names begin with ``user.`` and are in order."""
    found: dict[bytes, bytes] = {}
    start, last = 0, b""
    while start < len(data):
        if start + _XATTR.size > len(data):
            raise BadRecord("An attribute is cut.")
        name_length, length = _XATTR.unpack_from(data, start)
        start += _XATTR.size
        name, value = data[start : start + name_length], data[start + name_length : start + name_length + length]
        start += name_length + length
        if len(value) != length or name <= last or not name.startswith(b"user.") or b"\0" in name:
            raise BadRecord("An attribute has a name or a length that it may not have.")
        found[name] = value
        last = name
    return found


# -------------------------------------------------------------------------------------------------------------- extents


def pack_extents(extents: Extents | None) -> tuple[int, bytes]:
    """The number that stands for ``extents`` in a record, and what follows."""
    if extents is None:
        return WHOLE, b""
    return len(extents), b"".join(EXTENT.pack(*extent) for extent in extents)


def unpack_extents(count: int, inflow: Inflow, size: int) -> Extents | None:
    """The extents of a file of ``size`` bytes: ascending, not empty, within the size."""
    if size > SIZE_MAX:
        raise BadRecord("A file is too large.")
    if count == WHOLE:
        return None
    if count > EXTENTS_MAX:
        raise BadRecord("A file has too many extents.")
    extents, end = tuple(EXTENT.iter_unpack(inflow.exactly(count * EXTENT.size))), 0
    for offset, length in extents:
        if offset < end or not length:
            raise BadRecord("The extents of a file are not in order.")
        end = offset + length
    if end > size:
        raise BadRecord("The extents of a file are larger than the file.")
    return extents


def data_size(extents: Extents | None, size: int) -> int:
    """How many bytes of data a file has beside its holes."""
    return size if extents is None else sum(length for _, length in extents)


# ---------------------------------------------------------------------------------------------------------------- order


def check_path(path: bytes) -> None:
    """Let pass what names something beneath a root and nothing else; raises :class:`BadRecord`."""
    shut = b"/%b/" % path
    if b"//" in shut or b"/./" in shut or b"/../" in shut or b"\0" in path or len(path) > PATH_MAX:
        raise BadRecord(f"{shown(path)} is no path beneath the workspace.")


def check_paths(paths: list[bytes]) -> None:
    """:func:`check_path` of each, for many at once at a tenth of the cost."""
    shut = b"/%b/" % b"/\0/".join(paths)
    if (
        b"//" in shut
        or b"/./" in shut
        or b"/../" in shut
        or shut.count(b"\0") >= max(len(paths), 1)
        or max(map(len, paths), default=0) > PATH_MAX
    ):
        for path in paths:
            check_path(path)


def shown(path: bytes) -> str:
    """A path for people, cut to a length they read."""
    text = path.decode("utf-8", "replace")
    return text if len(text) <= 200 else f"{text[:200]}…"


class Order:
    """Takes entries as they come: paths ascend strictly, and each one's folder came before it as a folder.

    Only folders whose name the last path begins with can still get entries, so their lengths are all that is kept.
    ``on_leave`` is told of a folder (its path, and the note that came with it) as soon as nothing more comes for it.
    """

    def __init__(self, on_leave: Callable[[bytes, object], None] | None = None) -> None:
        self._last = b""
        self._folders: list[tuple[int, object]] = []
        self._on_leave = on_leave

    def take(self, path: bytes, *, folder: bool, note: object = None) -> None:
        """Check the next entry; raises :class:`BadRecord`."""
        check_path(path)
        self.place(path, folder=folder, note=note)

    def place(self, path: bytes, *, folder: bool, note: object = None) -> None:
        """:meth:`take` for a path that was checked."""
        last, folders = self._last, self._folders
        if path <= last:
            raise BadRecord(f"{shown(path)} comes twice or out of order.")
        while folders and last[: folders[-1][0]] != path[: folders[-1][0]]:
            self._leave()
        parent = path.rfind(b"/")
        if parent >= 0 and (not folders or folders[-1][0] != parent) and not self._is_folder(parent):
            raise BadRecord(f"{shown(path)} lies beneath something that is not a folder.")
        if folder:
            folders.append((len(path), note))
        self._last = path

    def end(self) -> None:
        """No entry follows."""
        while self._folders:
            self._leave()

    def _is_folder(self, length: int) -> bool:
        return any(known == length for known, _ in reversed(self._folders))

    def _leave(self) -> None:
        length, note = self._folders.pop()
        if self._on_leave is not None:
            self._on_leave(self._last[:length], note)


# --------------------------------------------------------------------------------------------------------------- inflow


class Inflow:
    """Records out of bytes that arrive in pieces of any size; holds at most one piece and what is asked for."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._source = iter(pieces)
        self._piece = b""
        self._at = 0

    def at_end(self) -> bool:
        """Whether nothing more comes; waits until that is known."""
        while self._at == len(self._piece):
            piece = next(self._source, None)
            if piece is None:
                return True
            self._piece, self._at = piece, 0
        return False

    def exactly(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        end = self._at + size
        if end <= len(self._piece):
            data, self._at = self._piece[self._at : end], end
            return data
        return b"".join(self.pieces(size))

    def at_most(self, size: int, most: int) -> bytes:
        """The next ``size`` bytes, which may be no more than ``most``."""
        if size > most:
            raise BadRecord("An entry is too large.")
        return self.exactly(size)

    def pieces(self, size: int) -> Iterator[bytes]:
        """The next ``size`` bytes as they come."""
        while size:
            if self.at_end():
                raise BadRecord("The stream ends inside a record.")
            piece, start = self._piece, self._at
            if start or len(piece) > size:
                piece = piece[start : start + size]
            self._at = start + len(piece)
            size -= len(piece)
            yield piece
