"""Durations and sizes: grammar and bounds."""

from datetime import timedelta

import pytest

from manifests import schema
from nylorun.kernel.durations import GIB, MIB, duration, in_units, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1ms", timedelta(milliseconds=1)),
        ("30s", timedelta(seconds=30)),
        (" 15m ", timedelta(minutes=15)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(milliseconds=7 * 86_400_000)),
        ("007s", timedelta(seconds=7)),
        ("36500d", timedelta(days=36500)),
    ],
)
def test_durations(text, expected):
    """E-49: an amount and a unit; a day has 86 400 000 ms."""
    assert duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "0ms", "0s", "00m", "0h", "0d", "-1s", "+1s", "1", "1.5h", "1 h", "1H", "1w", "s", "1s1s", "1s\x00", "\u0661s",
     "36501d", "9" * 16 + "s", "9" * 400 + "d", "1e3s", "infs", "NaNs"],
)  # fmt: skip
def test_what_is_no_duration_is_refused(text):
    """E-49: nothing, less than nothing, and what is no number of units is refused."""
    with pytest.raises(ValueError, match="must be"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1B", 1), ("1KiB", 1024), (" 3MiB ", 3 * MIB), ("5GiB", 5 * GIB), ("1TiB", 1024 * GIB)],
)
def test_sizes(text, expected):
    """E-49: units are powers of 1024."""
    assert size(text) == expected


@pytest.mark.parametrize(
    "text", ["", "0B", "0GiB", "-1B", "1", "1GB", "1gib", "1 GiB", "1.5GiB", "GiB", "9" * 16 + "B"]
)
def test_what_is_no_size_is_refused(text):
    """E-49: nothing and decimal units are refused."""
    with pytest.raises(ValueError, match="must be"):
        size(text)


@pytest.mark.parametrize(("amount", "expected"), [(1, 1), (MIB - 1, 1), (MIB, 1), (MIB + 1, 2)])
def test_whole_units_are_rounded_up(amount, expected):
    """E-49: what is asked for is never made less."""
    assert in_units(amount, MIB) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("128MiB", "128MiB"),
        ("131072KiB", "128MiB"),
        ("131073KiB", "129MiB"),
        ("2GiB", "2048MiB"),
        ("1TiB", "1048576MiB"),
    ],
)
def test_memory_is_kept_in_mib(text, expected):
    """E-49: memory as ``<n>MiB``, rounded up."""
    assert schema.memory(text) == expected


@pytest.mark.parametrize("text", ["127MiB", "131071KiB", "134217727B", "1B"])
def test_memory_has_a_least(text):
    """E-49: at least 128 MiB, before any rounding."""
    with pytest.raises(ValueError, match="at least 128MiB"):
        schema.memory(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1B", "1GiB"), ("1GiB", "1GiB"), ("1025MiB", "2GiB"), ("1024GiB", "1024GiB"), ("1TiB", "1024GiB")],
)
def test_storage_is_kept_in_gib(text, expected):
    """E-49: storage as ``<n>GiB``, rounded up."""
    assert schema.storage(text) == expected


@pytest.mark.parametrize("text", ["1025GiB", "2TiB", "1099511627777B"])
def test_storage_has_a_most(text):
    """E-53: at most 1024 GiB, after rounding."""
    with pytest.raises(ValueError, match="at most 1024GiB"):
        schema.storage(text)
