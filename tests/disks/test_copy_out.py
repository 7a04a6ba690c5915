"""A disk that cannot be read wholly: what is left out is left out alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from environments.compute.engine import reading
from environments.tools.disk import Progress, copy_out
from nylorun.blobs import MemoryStore, TreeReader
from tests.compute.copying.support import engine


@pytest.mark.parametrize("several", [True, False], ids=["in one window", "in windows of one"])
def test_a_file_whose_first_name_cannot_be_read_is_kept_under_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """E-277: no other file takes its place, whatever lies between its names, and later names follow the second."""
    if not several:
        monkeypatch.setattr("environments.tools.disk.WINDOW", 1)
    for name in ("a", "m", "y"):
        (tmp_path / name).write_bytes(name.encode() * 70_000)
    for name in ("n", "o"):
        os.link(tmp_path / "a", tmp_path / name)
    os.link(tmp_path / "y", tmp_path / "z")
    real = reading._open

    def refusing(folder: int, name: bytes) -> int:
        if name == b"a":
            raise OSError(errno.EIO, "damaged")
        return real(folder, name)

    monkeypatch.setattr(reading, "_open", refusing)
    store, progress = MemoryStore(), Progress()
    with engine(tmp_path) as target:
        copied = copy_out(
            target, store=store, claim=lambda _: None, previous=None, most_bytes=1 << 30, hold=False, progress=progress
        )
    found = {
        entry.path: (entry.hardlink, b"".join(data)[:1]) for entry, data in TreeReader(store, copied.root).contents()
    }
    assert found == {
        b"m": (None, b"m"),
        b"n": (None, b"a"),
        b"o": (b"n", b""),
        b"y": (None, b"y"),
        b"z": (b"y", b""),
    }


@pytest.mark.parametrize("changes", [1, 5])
def test_a_large_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    """E-277: three times in all, then taken as last read, whatever its size; the copy goes on."""
    (tmp_path / "big").write_bytes(b"0" * (3 << 20))
    (tmp_path / "next").write_bytes(b"n" * 70_000)
    real, seen = reading.Reading._file, []

    def changing(self: reading.Reading, handle: int, status: os.stat_result) -> None:
        if status.st_size == 3 << 20:
            seen.append(handle)
            if len(seen) <= changes:
                (tmp_path / "big").write_bytes(b"%d" % len(seen) * (3 << 20))
        real(self, handle, status)

    monkeypatch.setattr(reading.Reading, "_file", changing)
    store, progress = MemoryStore(), Progress()
    with engine(tmp_path) as target:
        copied = copy_out(
            target, store=store, claim=lambda _: None, previous=None, most_bytes=1 << 30, hold=False, progress=progress
        )
    found = {entry.path: (entry.stat, b"".join(data)) for entry, data in TreeReader(store, copied.root).contents()}
    reads = min(changes + 1, 3)
    assert len(seen) == reads
    assert found[b"big"][1] == b"%d" % min(changes, reads) * (3 << 20)
    assert found[b"next"][1] == b"n" * 70_000
    assert changes == 1 or found[b"big"][0] == b"", "what was not of one moment is trusted by no later copy"
