"""Writing a ZIP archive as a stream: equal trees give equal bytes, so no time and no name of this machine is in it."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterable, Iterator
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

_TIME = (1980, 1, 1, 0, 0, 0)  # the first one the format knows
_UNIX = 3
_WIDE = 1 << 31  # from here on the sizes of a member take the ZIP64 form, whatever they come to when packed


def zip_stream(members: Iterable[tuple[str, int | None, Iterable[bytes]]]) -> Iterator[bytes]:
    """The archive of ``members``, in pieces: path, size (``None`` for a folder) and bytes of each, in this order."""
    sink = _Sink()
    with ZipFile(sink, "w", ZIP_DEFLATED) as archive:
        for path, size, content in members:
            with archive.open(_info(path, size), "w", force_zip64=(size or 0) >= _WIDE) as member:
                for piece in content:
                    member.write(piece)
                    yield from sink.taken()
    yield from sink.taken()


def _info(path: str, size: int | None) -> ZipInfo:
    folder = size is None
    info = ZipInfo(f"{path}/" if folder else path, _TIME)
    info.create_system = _UNIX
    info.compress_type = ZIP_STORED if folder else ZIP_DEFLATED
    mode = stat.S_IFDIR | 0o755 if folder else stat.S_IFREG | 0o644
    info.external_attr = mode << 16 | (0x10 if folder else 0)
    return info


class _Sink(io.RawIOBase):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        piece = bytes(data)  # type: ignore[call-overload]  # any buffer, as the base class says
        self._kept.append(piece)
        return len(piece)

    def taken(self) -> Iterator[bytes]:
        """What was written since the last time."""
        kept, self._kept = self._kept, []
        if kept:
            yield b"".join(kept)
