"""Durations and sizes as people write them: ``15m``, ``2GiB``.

Grammar: ``duration ^(\\d+)(ms|s|m|h|d)$`` and ``size ^(\\d+)(B|KiB|MiB|GiB|TiB)$``, both trimmed, with an amount
above 0; a day has 86 400 000 ms and sizes are powers of 1024 (IEC 80000-13).
"""

from __future__ import annotations

import re
from datetime import timedelta

_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]+)(B|KiB|MiB|GiB|TiB)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DIGITS_MAX = 15
LONGEST = timedelta(days=36_500)
MIB, GIB = 1 << 20, 1 << 30


def duration(text: str) -> timedelta:
    """Parse a duration; raises ``ValueError`` with a sentence for people. At most 100 years."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or len(match[1]) > _DIGITS_MAX:
        raise ValueError("must be a duration such as 30s, 15m, 2h or 7d")
    milliseconds = int(match[1]) * _MILLISECONDS[match[2]]
    if milliseconds <= 0:
        raise ValueError("must be longer than nothing")
    if milliseconds > LONGEST / timedelta(milliseconds=1):
        raise ValueError("must be at most 36500d")
    return timedelta(milliseconds=milliseconds)


def size(text: str) -> int:
    """Parse a size into bytes; raises ``ValueError`` with a sentence for people."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(match[1]) > _DIGITS_MAX:
        raise ValueError("must be a size such as 512MiB or 5GiB")
    amount = int(match[1]) * _BYTES[match[2]]
    if amount <= 0:
        raise ValueError("must be more than nothing")
    return amount


def in_units(amount: int, unit: int) -> int:
    """``amount`` bytes in whole ``unit``s, rounded up."""
    return -(-amount // unit)
