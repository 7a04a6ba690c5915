"""Where files and blocks are cut, and the thread that hashes beside."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from nylorun.blobs.cutting import (
    BLOCK_MAX,
    BLOCK_MIN,
    CHUNK_AVERAGE,
    CHUNK_MAX,
    CHUNK_MIN,
    FILE_COST,
    Cutter,
    block_ends,
)
from nylorun.blobs.hashing import Lane
from tests.blobs.helpers import noise

CONTENT = noise(40 << 20)


@given(st.lists(st.integers(1, 20 << 20), max_size=12), st.integers(0, 40 << 20))
@settings(max_examples=25, deadline=None)
def test_chunks_depend_on_content_alone(cuts: list[int], size: int) -> None:
    """E-129: not on the pieces in which it comes; together they are the content; sizes are within bounds."""
    content, pieces, at = CONTENT[:size], [], 0
    for length in cuts:
        pieces.append(content[at : at + length])
        at += length
    cutter = Cutter()
    chunks = list(cutter.cut([*pieces, content[at:]]))
    assert b"".join(chunks) == content
    assert chunks == list(cutter.cut([content]))
    assert all(CHUNK_MIN <= len(chunk) <= CHUNK_MAX for chunk in chunks[:-1])


def test_chunks_realign_after_a_change() -> None:
    """E-129: bytes put in at the front change the first chunks only; the average is what was meant."""
    chunks = list(Cutter().cut([CONTENT]))
    moved = set(Cutter().cut([b"some bytes more", CONTENT]))
    assert len(set(chunks) - moved) <= 2
    assert CHUNK_AVERAGE * 0.7 < len(CONTENT) / len(chunks) < CHUNK_AVERAGE * 1.5


def test_blocks_end_by_content_within_bounds() -> None:
    """E-129: never below 1 MiB, always at 4 MiB, about 1 MiB after the least, for small and large files alike."""
    low, high = bytes(32), b"\xff" * 32
    assert not block_ends(low, 100, BLOCK_MIN - 1)
    assert block_ends(low, 100, BLOCK_MIN)
    assert not block_ends(high, 100, BLOCK_MAX - 1)
    assert block_ends(high, 100, BLOCK_MAX)
    for size in (0, 500, 20_000, 200_000):
        blocks, cost = 0, 0
        for number in range((100 << 20) // (size + FILE_COST)):
            cost += size + FILE_COST
            if block_ends(hashlib.sha256(b"%d" % number).digest(), size, cost):
                blocks, cost = blocks + 1, 0
        assert 40 < blocks < 65


def test_little_waits_beside() -> None:
    """E-129: who hands over faster than the thread works waits; so memory stays flat. Everything is done in order."""
    lane, gate, done, given = Lane(), threading.Event(), [], []

    def work(data: bytes) -> int:
        gate.wait(30)
        done.append(data)
        return int(data)

    def give() -> Iterator[bytes]:
        for number in range(30):
            given.append(number)
            yield b"%d" % number

    taken: list[tuple[bytes, int]] = []
    taker = threading.Thread(target=lambda: taken.extend(lane.run(work, give())))
    taker.start()
    taker.join(0.3)
    waiting = taker.is_alive(), len(given)
    gate.set()
    taker.join()
    lane.close()
    assert waiting[0]
    assert waiting[1] <= 6
    assert done == [b"%d" % number for number in range(30)]
    assert taken == [(b"%d" % number, number) for number in range(30)]
