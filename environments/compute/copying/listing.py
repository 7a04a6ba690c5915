"""Walking a disk: ``list_tree``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

from environments.compute.copying.pulling import CopyFailed, PulledCall, unusable
from environments.compute.copying.stats import KINDS, Kind, checked_kind, unpack_stat
from environments.compute.copying.target import Target
from environments.compute.engine import records
from environments.compute.engine.records import BadRecord, Inflow, Order

LIST_MOST = 1_000_000


class TooManyEntries(CopyFailed):
    """The disk has more than ``most`` entries."""

    def __init__(self, most: int) -> None:
        super().__init__("tool.too_large", f"The disk has more than {most} entries.")
        self.most = most


class Listed(NamedTuple):
    """One entry. ``stat`` is opaque: equal bytes are an unchanged entry, when ``settled``."""

    path: bytes
    stat: bytes
    extra: bytes

    @property
    def kind(self) -> Kind:
        return KINDS[self.stat[0]]

    @property
    def mode(self) -> int:
        return unpack_stat(self.stat).mode

    @property
    def nlink(self) -> int:
        return unpack_stat(self.stat).nlink

    @property
    def size(self) -> int:
        return unpack_stat(self.stat).size

    @property
    def mtime_ns(self) -> int:
        return unpack_stat(self.stat).mtime_ns

    @property
    def ctime_ns(self) -> int:
        return unpack_stat(self.stat).ctime_ns

    @property
    def ino(self) -> int:
        return unpack_stat(self.stat).ino

    @property
    def target(self) -> bytes:
        """Where a link leads; empty for anything else."""
        return self.extra if self.stat[0] == records.LINK else b""

    @property
    def xattrs(self) -> dict[bytes, bytes]:
        """The ``user.*`` attributes of a folder; those of a file come with its content."""
        return records.unpack_xattrs(self.extra) if self.stat[0] == records.FOLDER else {}


class Listing:
    """The entries of a disk, to be iterated once. ``clock_ns`` is the Engine's clock when its walk began.

    After the last entry ``skipped`` counts sockets, pipes and devices, and ``unreachable`` folders that could not be
    read and paths that are too long.
    """

    def __init__(self, call: PulledCall, most: int) -> None:
        self._call = call
        self._most = most
        self._inflow = Inflow(call.pieces())
        self.skipped = self.unreachable = 0
        try:
            (self.clock_ns,) = records.CLOCK.unpack(self._inflow.exactly(records.CLOCK.size))
        except BadRecord as error:
            raise unusable(str(error)) from error

    def __iter__(self) -> Iterator[Listed]:
        order, count = Order(), 0
        while not self._inflow.at_end():
            count += 1
            if count > self._most:
                raise TooManyEntries(self._most)
            yield self._next(order)
        result = self._call.output
        if result["entries"] != count:
            raise unusable("it listed another number of entries than it said.")
        self.skipped, self.unreachable = cast("int", result["skipped"]), cast("int", result["unreachable"])

    def _next(self, order: Order) -> Listed:
        try:
            path_length, length, stat = records.LISTED.unpack(self._inflow.exactly(records.LISTED.size))
            path, extra = self._inflow.exactly(path_length), self._inflow.at_most(length, records.XATTRS_MAX)
            kind = checked_kind(stat)
            order.take(path, folder=kind == records.FOLDER)
            _check_extra(kind, extra)
        except BadRecord as error:
            raise unusable(str(error)) from error
        return Listed(path, stat, extra)


def _check_extra(kind: int, extra: bytes) -> None:
    if kind == records.FOLDER:
        records.unpack_xattrs(extra)
    elif kind == records.LINK:
        if not 0 < len(extra) <= records.TARGET_MAX or b"\0" in extra:
            raise BadRecord("a link leads nowhere.")
    elif extra:
        raise BadRecord("a file has an extra.")


@contextmanager
def list_tree(target: Target, *, most_entries: int = LIST_MOST) -> Iterator[Listing]:
    """Walk the disk. More than ``most_entries`` raise :class:`TooManyEntries` while they are iterated."""
    with target.call("tree.list") as call:
        call.end_body()
        yield Listing(call, most_entries)
