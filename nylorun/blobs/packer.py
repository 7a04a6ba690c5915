"""Small files together in one block."""

from __future__ import annotations

from nylorun.blobs.cutting import FILE_COST, block_ends
from nylorun.blobs.records import pending
from nylorun.blobs.sink import Sink


class Packer:
    """Fills blocks in the order of the files it is given; a block goes to the sink when it ends."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._number = -1
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes, sha256: bytes) -> bytes:
        """The packed ref of a file with this data; ``sha256`` decides with it where the block ends."""
        if not self._parts:
            self._number = self._sink.reserve()
        ref = pending(self._number, self._size, len(data))
        self._parts.append(data)
        self._size += len(data)
        if block_ends(sha256, len(data), self._size + FILE_COST * len(self._parts)):
            self.end()
        return ref

    def end(self) -> None:
        """End the open block."""
        if self._parts:
            self._sink.fill(self._number, b"".join(self._parts))
            self._parts.clear()
            self._size = 0
