"""Which blobs a reading needs, in which order, and what it takes from each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nylorun.blobs.ahead import Plan
from nylorun.blobs.entry import Entry, Ref, Span
from nylorun.blobs.hashing import ZEROS


class Part(NamedTuple):
    """``[first, last)`` of a blob's content; of a hole (which has no blob) ``last`` zeros."""

    first: int
    last: int


class Step(NamedTuple):
    """The ``number``-th ref of an entry, from 0; an entry without refs has one step all the same."""

    entry: Entry
    number: int


def parts_of(refs: Iterable[Ref], spans: Iterable[Span]) -> Plan[Part]:
    """The parts of blobs that hold the spans, which ascend. Refs that hold less are a ``ValueError``."""
    rest = iter(refs)
    ref, begin = None, 0
    for at, length in spans:
        if at is None:
            yield Part(0, length), None
            continue
        position, end = at, at + length
        while position < end:
            while ref is None or begin + ref.length <= position:
                begin += ref.length if ref else 0
                ref = next(rest, None)
                if ref is None:
                    raise ValueError("an entry's refs hold less than its size")
            last = min(ref.length, end - begin)
            yield Part(ref.offset + position - begin, ref.offset + last), ref
            position = begin + last


def steps_of(entries: Iterable[Entry]) -> Plan[Step]:
    """Everything that a whole tree needs."""
    for entry in entries:
        if not entry.refs:
            yield Step(entry, 0), None
        for number, ref in enumerate(entry.refs):
            yield Step(entry, number), ref


def zeros(length: int) -> Iterator[bytes]:
    """``length`` zeros, at most 1 MiB at a time."""
    while length >= len(ZEROS):
        yield ZEROS
        length -= len(ZEROS)
    if length:
        yield ZEROS[:length]
