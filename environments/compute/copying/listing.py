"""Walking a disk: ``list_tree``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

from environments.compute.copying.pulling import CopyFailed, PulledCall, unusable
from environments.compute.copying.stats import Kind, Stat, checked_stat
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
    """One entry. ``stat`` is opaque: equal bytes are an unchanged entry, when ``settled``. ``found`` is what it says.

    With ``has_content`` it is a file that has one name, no holes and no attributes, and ``extra`` is its content.
    """

    path: bytes
    stat: bytes
    extra: bytes
    found: Stat
    has_content: bool

    @property
    def kind(self) -> Kind:
        return self.found.kind

    @property
    def target(self) -> bytes:
        """Where a link leads; empty for anything else."""
        return self.extra if self.found.kind == "link" else b""

    @property
    def xattrs(self) -> dict[bytes, bytes]:
        """The ``user.*`` attributes of a folder; those of a file come with its content."""
        return records.unpack_xattrs(self.extra) if self.found.kind == "dir" else {}


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
            try:
                group = self._group(order)
            except BadRecord as error:
                raise unusable(str(error)) from error
            count += len(group)
            if count > self._most:
                yield from group[: self._most - count]
                raise TooManyEntries(self._most)
            yield from group
        result = self._call.output
        if result["entries"] != count:
            raise unusable("it listed another number of entries than it said.")
        self.skipped, self.unreachable = cast("int", result["skipped"]), cast("int", result["unreachable"])

    def _group(self, order: Order) -> list[Listed]:
        count, paths_size, extras_size = records.GROUP.unpack(self._inflow.exactly(records.GROUP.size))
        if not 0 < count <= records.GROUP_MAX:
            raise BadRecord("a group has an impossible size.")
        heads = self._inflow.exactly(count * records.LISTED.size)
        paths = self._inflow.at_most(paths_size, records.PIECE + records.PATH_MAX)
        extras = self._inflow.at_most(extras_size, records.PIECE + records.XATTRS_MAX)
        group, at, end = [], 0, 0
        for number, (path_size, size, has_content, *fields) in enumerate(records.LISTED_FIELDS.iter_unpack(heads), 1):
            path, extra = paths[at : at + path_size], extras[end : end + size]
            at, end = at + path_size, end + size
            if len(path) != path_size or len(extra) != size:
                raise BadRecord("an entry is out of its bounds.")
            found = checked_stat(fields)
            if size or has_content or found.kind != "file":
                _check_extra(found, extra, has_content=has_content)
            status = heads[number * records.LISTED.size - records.STAT.size : number * records.LISTED.size]
            group.append(Listed(path, status, extra, found, has_content))
        if at != paths_size or end != extras_size:
            raise BadRecord("a group holds more than its entries.")
        records.check_paths([listed.path for listed in group])
        for listed in group:
            order.place(listed.path, folder=listed.found.kind == "dir")
        return group


def _check_extra(found: Stat, extra: bytes, *, has_content: bool) -> None:
    if has_content:
        if found.kind != "file" or found.nlink != 1 or len(extra) != found.size:
            raise BadRecord("a content is of something else.")
    elif found.kind == "dir":
        records.unpack_xattrs(extra)
    elif found.kind == "link":
        if not 0 < len(extra) <= records.TARGET_MAX or b"\0" in extra:
            raise BadRecord("a link leads nowhere.")
    else:
        raise BadRecord("a file has an extra.")


@contextmanager
def list_tree(target: Target, *, content: bool = False, most_entries: int = LIST_MOST) -> Iterator[Listing]:
    """Walk the disk; with ``content`` most small files come with theirs.

    More than ``most_entries`` raise :class:`TooManyEntries` while they are iterated.
    """
    with target.call("tree.list", content=content) as call:
        call.end_body()
        yield Listing(call, most_entries)
