"""Where content is cut: large files by themselves, small ones together.

A file with more than ``SMALL`` bytes of data is cut by FastCDC (2020, normalised) into chunks of 256 KiB to 2 MiB,
about 1.2 MiB; a changed byte changes one chunk, sometimes two. Smaller files, which the cutter would not cut at all,
are packed together into blocks of 1 to 4 MiB that compress as a whole. Both kinds of end depend on content alone:
equal files give equal chunks, and equal runs of small files give equal blocks from the second block of the run on.

These numbers are part of no format: what is stored stays readable when they change, it is only shared less.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from pyfastcdc import FastCDC

SMALL = 256 << 10
CHUNK_MIN, CHUNK_AVERAGE, CHUNK_MAX = 256 << 10, 1 << 20, 2 << 20
BLOCK_MIN, BLOCK_STEP, BLOCK_MAX = 1 << 20, 1 << 20, 4 << 20
FILE_COST = 64
"""What a file counts in a block beside its bytes, so that a block of tiny files has at most 64 Ki of them."""

_WINDOW = 4 << 20


class Cutter:
    """Cuts one file after the other through a window of 4 MiB that is made once."""

    def __init__(self) -> None:
        self._window = memoryview(b"")
        self._cutter = FastCDC(CHUNK_AVERAGE, min_size=CHUNK_MIN, max_size=CHUNK_MAX, normalized_chunking=2)

    def cut(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks of the content that ``pieces`` are."""
        if not self._window:
            self._window = memoryview(bytearray(_WINDOW))
        window, held = self._window, 0
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                taken = min(len(rest), _WINDOW - held)
                window[held : held + taken] = rest[:taken]
                held, rest = held + taken, rest[taken:]
                if held == _WINDOW:
                    end = yield from self._chunks(held, last=False)
                    window[: held - end] = window[end:held]
                    held -= end
        yield from self._chunks(held, last=True)

    def _chunks(self, held: int, *, last: bool) -> Generator[bytes, None, int]:
        """The chunks of the window whose ends are certain (``CHUNK_MAX`` bytes are to be seen); returns the end."""
        chunks = self._cutter.cut_buf(self._window[:held])
        end = 0
        while held - end >= (1 if last else CHUNK_MAX):
            chunk = next(chunks)
            end = chunk.offset + chunk.length
            yield bytes(chunk.data)
        return end


def block_ends(sha256: bytes, size: int, cost: int) -> bool:
    """Whether a block that counts ``cost`` ends after a file of ``size`` bytes with this hash.

    Each byte ends a block with the same chance, so blocks of large and of tiny files are equally long.
    """
    if cost < BLOCK_MIN:
        return False
    return cost >= BLOCK_MAX or int.from_bytes(sha256[:4]) * BLOCK_STEP < (size + FILE_COST) << 32
