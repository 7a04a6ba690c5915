"""The ``STAT`` of an entry as the control plane sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from environments.compute.engine import records
from environments.compute.engine.records import BadRecord

Kind = Literal["file", "dir", "link"]

KINDS: dict[int, Kind] = {records.FILE: "file", records.FOLDER: "dir", records.LINK: "link"}
SETTLE_NS = 50_000_000  # more than the grain of any clock that files are stamped with


class Stat(NamedTuple):
    """What a ``STAT`` holds; a folder has size 0, ``mode`` is permission bits (0 to 0o7777)."""

    kind: Kind
    mode: int
    nlink: int
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int


def unpack_stat(stat: bytes) -> Stat:
    """The fields of a ``STAT``; raises :class:`BadRecord` for other bytes, and for one out of bounds."""
    if len(stat) != records.STAT.size:
        raise BadRecord("these bytes are no STAT.")
    return checked_stat(records.STAT.unpack(stat))


def checked_stat(fields: Sequence[int]) -> Stat:
    """The fields of a ``STAT`` that was unpacked with what stands beside it; raises :class:`BadRecord`."""
    kind, mode, _, size, *_ = fields
    if kind not in KINDS or mode > 0o7777 or size > records.SIZE_MAX:
        raise BadRecord("an entry is out of its bounds.")
    return Stat(KINDS[kind], *fields[1:])


NOTHING = Stat("file", 0, 0, 0, 0, 0, 0)
"""The ``Stat`` of a file that is not there."""


def settled(found: Stat, clock_ns: int) -> bool:
    """Whether a file of this ``STAT`` cannot change without another one: at the clock of the walk its last change was
    longer ago than the grain of time stamps."""
    return max(found.mtime_ns, found.ctime_ns) < clock_ns - SETTLE_NS
