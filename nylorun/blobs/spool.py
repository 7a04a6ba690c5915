"""Records on their way: kept compressed in memory, beyond 16 MiB in a file without a name, read back in order.

A tree of a million entries has some 200 MB of records; memory stays flat, and a killed process leaves nothing behind.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator

import zstandard

from nylorun.blobs.errors import StoreUnavailable

_IN_MEMORY = 16 << 20
_BATCH = 256 << 10
_SIZE = struct.Struct("<I")
_LENGTHS = struct.Struct("<I")


class Spool:
    """Write everything, then read it as often as needed. For one thread."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 closed by close()
        self._batch: list[bytes] = []
        self._size = 0
        self._compress = zstandard.ZstdCompressor(level=1).compress

    def append(self, raw: bytes) -> None:
        """Keep one record."""
        self._batch.append(raw)
        self._size += len(raw)
        if self._size >= _BATCH:
            self._write()

    def __iter__(self) -> Iterator[bytes]:
        """The records in the order of their coming; nothing may be appended meanwhile."""
        self._write()
        self._file.seek(0)
        decompress = zstandard.ZstdDecompressor().decompress
        while size := self._file.read(_SIZE.size):
            batch = decompress(self._file.read(_SIZE.unpack(size)[0]))
            at = 0
            while at < len(batch):
                (length,) = _LENGTHS.unpack_from(batch, at)
                yield batch[at : at + length]
                at += length

    def close(self) -> None:
        """Give the space back."""
        self._file.close()

    def _write(self) -> None:
        if not self._batch:
            return
        packed = self._compress(b"".join(self._batch))
        self._batch.clear()
        self._size = 0
        try:
            self._file.write(_SIZE.pack(len(packed)) + packed)
        except OSError as failure:
            raise StoreUnavailable(f"No temporary space for the index of a tree: {failure}.") from failure
