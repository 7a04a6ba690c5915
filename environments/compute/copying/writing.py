"""Writing a disk: ``write_tree``, and ``swap`` for one that was written beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from environments.compute.copying.pulling import CopyFailed, PulledCall, unusable
from environments.compute.copying.stats import Kind
from environments.compute.copying.target import Target
from environments.compute.engine import records, wire
from environments.compute.engine.records import Extents

SYNC_SECONDS = 600.0  # an Engine that writes everything to its disk says nothing meanwhile
_NUMBERS = {"file": records.FILE, "dir": records.FOLDER, "link": records.LINK}


class Writable(Protocol):
    """An entry to be written. ``hardlink`` is the path of the first name of the same file; then it has no data."""

    @property
    def path(self) -> bytes: ...
    @property
    def kind(self) -> str: ...
    @property
    def mode(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
    @property
    def target(self) -> bytes: ...
    @property
    def hardlink(self) -> bytes | None: ...
    @property
    def xattrs(self) -> Mapping[bytes, bytes]: ...
    @property
    def extents(self) -> Extents | None: ...


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A :class:`Writable` by itself."""

    path: bytes
    kind: Kind = "file"
    mode: int = 0o644
    size: int = 0
    mtime_ns: int = 0
    target: bytes = b""
    hardlink: bytes | None = None
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)
    extents: Extents | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: ``size`` bytes of data; ``refused_xattrs`` attributes were not taken by the file system."""

    entries: int
    size: int
    refused_xattrs: int


def write_tree(
    target: Target, entries: Iterable[tuple[Writable, Iterable[bytes]]], *, stage: str | None = None
) -> Written:
    """Empty the disk and write ``entries`` (ascending), each with the data of its extents or of the whole file.

    With ``stage`` (virtual workspaces) the tree is written beside the workspace, for ``swap``; such a name is used for
    one tree. Everything is on the disk when this returns.
    """
    args = {} if stage is None else {"stage": stage}
    with target.call("tree.write", **args) as call:
        outflow = _Outflow(call)
        count, size = 0, 0
        for entry, data in entries:
            count += 1
            size += outflow.add(entry, data)
            if not outflow.wanted:
                break
        outflow.end()
        call.quiet_s = max(call.quiet_s, SYNC_SECONDS)
        result = call.output
        if not outflow.wanted or result["entries"] != count or result["bytes"] != size:
            raise unusable("it wrote something else than it was sent.")
        return Written(count, size, cast("int", result["refusedXattrs"]))


class _Outflow:
    """Puts entries into frames: small ones together, large data as it comes."""

    def __init__(self, call: PulledCall) -> None:
        self._call = call
        self._ready = bytearray()
        self.wanted = True

    def add(self, entry: Writable, data: Iterable[bytes]) -> int:
        """Send an entry; gives how much data it has."""
        is_file = entry.kind == "file" and entry.hardlink is None
        self._put(_packed(entry, is_file=is_file))
        expected = left = records.data_size(entry.extents, entry.size) if is_file else 0
        for piece in data:
            left -= len(piece)
            if left < 0 or not self.wanted:
                break
            self._put(piece)
        if left and self.wanted:
            raise CopyFailed("tool.failed", f"{records.shown(entry.path)} has not the data that its size says.")
        return expected

    def end(self) -> None:
        """Nothing more comes."""
        self._flush()
        if self.wanted:
            self.wanted = self._call.end_body()

    def _put(self, data: bytes) -> None:
        if len(self._ready) + len(data) <= records.PIECE:
            self._ready += data
            return
        self._flush()
        for start in range(0, len(data), wire.MAX_PAYLOAD):
            self._send(data[start : start + wire.MAX_PAYLOAD])

    def _flush(self) -> None:
        if self._ready:
            self._send(bytes(self._ready))
            self._ready.clear()

    def _send(self, data: bytes) -> None:
        self.wanted = self.wanted and self._call.send_data(data)


def _packed(entry: Writable, *, is_file: bool) -> bytes:
    """The record of an entry up to its data. Raises ``ValueError`` for one that no record holds."""
    kind, target = _NUMBERS[entry.kind], entry.target if entry.kind == "link" else b""
    if entry.hardlink is not None:
        kind, target = records.NAME, entry.hardlink
    count, extents = records.pack_extents(entry.extents if is_file else None)
    xattrs = records.pack_xattrs(dict(entry.xattrs)) if kind in (records.FILE, records.FOLDER) else b""
    if max(len(entry.path), len(target)) > records.PATH_MAX:
        raise ValueError("a path or target is longer than 65 535 bytes")
    head = records.WRITE.pack(
        kind,
        entry.mode,
        records.fitted(entry.mtime_ns),
        entry.size if is_file else 0,
        len(entry.path),
        len(target),
        len(xattrs),
        count,
    )
    return b"".join((head, entry.path, target, xattrs, extents))


def swap(target: Target, stage: str) -> bool:
    """Put a stage that was written whole in the workspace's place; ``False`` when that had happened already."""
    with target.call("workspace.swap", stage=stage) as call:
        call.end_body()
        return bool(call.output["swapped"])
