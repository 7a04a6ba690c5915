"""Reading files of a disk: ``read_files``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from environments.compute.copying.pulling import unusable
from environments.compute.copying.stats import NOTHING, unpack_stat
from environments.compute.copying.target import Target
from environments.compute.engine import records, wire
from environments.compute.engine.records import BadRecord, Extents, Inflow

FileStatus = Literal["ok", "missing", "unreadable", "other"]

BATCH_FILES = 20_000
_STATUSES: dict[int, FileStatus] = {
    records.OK: "ok",
    records.MISSING: "missing",
    records.UNREADABLE: "unreadable",
    records.OTHER: "other",
}


class FileRead:
    """One file as it was read. Take its data before the next file is asked for; what is left then is dropped.

    ``found`` is its ``stat`` unpacked.
    ``status`` says whether it was there: ``other`` is no regular file any more. Without ``ok`` there is nothing else.
    """

    def __init__(self, path: bytes, inflow: Inflow) -> None:
        self.path = path
        self._inflow = inflow
        status, stat, xattrs, extents = records.READ.unpack(inflow.exactly(records.READ.size))
        if status not in _STATUSES or xattrs > records.XATTRS_MAX:
            raise BadRecord("a file is out of its bounds.")
        self.status = _STATUSES[status]
        self.stat: bytes = b""
        self.found = NOTHING
        self.xattrs: dict[bytes, bytes] = {}
        self.extents: Extents | None = None
        self._left = 0
        self._end: tuple[bytes, bool] | None = None if status == records.OK else (b"", False)
        if status == records.OK:
            self._begin(stat, xattrs, extents)

    def _begin(self, stat: bytes, xattrs: int, extents: int) -> None:
        self.stat, self.found = stat, unpack_stat(stat)
        if self.found.kind != "file":
            raise BadRecord("a file is none.")
        self.xattrs = records.unpack_xattrs(self._inflow.exactly(xattrs))
        size = self.found.size
        self.extents = records.unpack_extents(extents, self._inflow, size)
        self._left = records.data_size(self.extents, size)

    def data(self) -> Iterator[bytes]:
        """The data of the extents in order (of the whole file when it has no holes), exactly as much as they say."""
        try:
            for piece in self._inflow.pieces(self._left):
                self._left -= len(piece)
                yield piece
        except BadRecord as error:
            raise unusable(str(error)) from error

    @property
    def after(self) -> bytes:
        """The ``STAT`` after the last byte was read; takes what is left of the data."""
        return self._ending()[0]

    @property
    def steady(self) -> bool:
        """Whether the data is of one moment: nothing changed, and nothing was missing."""
        after, cut = self._ending()
        return self.status == "ok" and after == self.stat and not cut

    def _ending(self) -> tuple[bytes, bool]:
        if self._end is None:
            for _ in self.data():
                pass
            try:
                after, cut = records.READ_END.unpack(self._inflow.exactly(records.READ_END.size))
                unpack_stat(after)
            except BadRecord as error:
                raise unusable(str(error)) from error
            self._end = after, bool(cut)
        return self._end


def read_files(target: Target, paths: Iterable[bytes]) -> Iterator[FileRead]:
    """Read regular files, in the order of ``paths`` (ascending is fastest), one call for each batch of names."""
    for batch in _batches(paths):
        yield from _read_batch(target, batch)


def _batches(paths: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for path in paths:
        need = records.LENGTH.size + len(path)
        if batch and (size + need > records.READ_BATCH or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += need
    if batch:
        yield batch


def _read_batch(target: Target, paths: list[bytes]) -> Iterator[FileRead]:
    with target.call("tree.read") as call:
        request = b"".join(records.LENGTH.pack(len(path)) + path for path in paths)
        for start in range(0, len(request), wire.CHUNK):
            call.send_data(request[start : start + wire.CHUNK])
        call.end_body()
        inflow = Inflow(call.pieces())
        for path in paths:
            try:
                file = FileRead(path, inflow)
            except BadRecord as error:
                raise unusable(str(error)) from error
            yield file
            file._ending()  # what the caller did not take
        if not inflow.at_end() or call.output["files"] != len(paths):
            raise unusable("it read something else than it was asked for.")
