"""Disks that change while they are copied, and attempts that follow each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from environments.compute.contract import Interrupted, NotAccepted
from environments.compute.copying import NewEntry, list_tree, read_files, settled, unpack_stat, write_tree
from environments.compute.engine.attempts import REMEMBERED, Attempts
from environments.compute.engine.records import BadRecord
from environments.compute.engine.wire import Refused
from tests.compute.copying.support import MIB, engine, paths_of

BIG = 16 * MIB


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(BIG - 10)
        file.write(b"changed")


CHANGES: dict[str, Callable[[Path], object]] = {
    "overwritten": overwrite,
    "grown": append,
    "shrunk": lambda path: os.truncate(path, 10 * MIB),
    "emptied": lambda path: os.truncate(path, 0),
    "touched": lambda path: os.utime(path),
    "another mode": lambda path: path.chmod(0o600),
    "another attribute": lambda path: os.setxattr(path, "user.x", b"1"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """E-294: exactly as much data comes as was told, and the reader learns that it is of no one moment."""
    (tmp_path / "a").write_bytes(b"\x01" * BIG)
    (tmp_path / "b").write_bytes(b"calm")
    with engine(tmp_path) as target:
        files = read_files(target, [b"a", b"b"])
        file = next(files)
        pieces = file.data()
        first = next(pieces)  # its Engine waits now: a socket holds no 16 MiB
        change(tmp_path / "a")
        content = first + b"".join(pieces)
        assert len(content) == file.found.size == BIG
        assert not file.steady
        calm = next(files)
        assert (b"".join(calm.data()), calm.steady) == (b"calm", True)
        assert next(files, None) is None


def test_a_file_that_is_replaced_by_another_thing_is_told(tmp_path: Path) -> None:
    """No link is followed, no pipe waited for: what is no regular file any more is told as such."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "through").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    with engine(root) as target:
        paths = [b"folder", b"gone", b"link", b"pipe", b"through/outside"]
        found = [(file.path, file.status, b"".join(file.data())) for file in read_files(target, paths)]
    assert found == [
        (b"folder", "other", b""), (b"gone", "missing", b""), (b"link", "other", b""), (b"pipe", "other", b""),
        (b"through/outside", "missing", b""),
    ]  # fmt: skip


def test_a_tree_that_is_moved_about_while_it_is_listed_ends_nothing(tmp_path: Path) -> None:
    """What vanishes is left out, what is replaced is no way out of the disk, and the listing goes on."""
    outside = tmp_path / "outside" / "secret"
    outside.mkdir(parents=True)
    root = tmp_path / "root"
    for folder in range(40):
        deep = root / f"{folder:02}" / "/".join("x" * 8 for _ in range(40))
        deep.mkdir(parents=True)
        for number in range(60):
            (deep / f"{'n' * 200}{number}").touch()
    with engine(root) as target, list_tree(target) as listing:
        seen = []
        for entry in listing:
            seen.append(entry)
            if len(seen) == 1500:  # the walk is some folders further by now, and waits for us
                for folder in range(1, 40):
                    (root / f"{folder:02}").rename(tmp_path / f"away{folder}")
                    (root / f"{folder:02}").symlink_to(tmp_path / "outside")
    assert paths_of(seen)[0] == b"00"
    assert not [entry.path for entry in seen if b"secret" in entry.path]
    assert len(seen) >= 45


def test_a_folder_that_was_no_folder_a_moment_ago_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is listed beneath a name that was not listed as a folder, whatever it has become since."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "inside").touch()
    real = os.stat

    def swapped(path: bytes, **more: object) -> os.stat_result:
        if path == b"b":
            raise FileNotFoundError
        return real(tmp_path / "a" / "inside" if path == b"c" else path, **({} if path == b"c" else more))  # type: ignore[arg-type]

    monkeypatch.setattr("environments.compute.engine.listing.os.stat", swapped)
    with engine(tmp_path) as target, list_tree(target) as listing:
        assert [(entry.path, entry.kind) for entry in listing] == [(b"a", "dir"), (b"a/inside", "file"), (b"c", "file")]


def test_a_stat_is_trusted_once_it_is_older_than_the_grain_of_time(tmp_path: Path) -> None:
    """A file that was changed just before the walk may change again without another time stamp."""
    (tmp_path / "f").write_bytes(b"x")
    with engine(tmp_path) as target, list_tree(target) as listing:
        (entry,) = listing
    assert not settled(unpack_stat(entry.stat), listing.clock_ns)
    assert settled(unpack_stat(entry.stat), listing.clock_ns + 10**9)
    assert unpack_stat(entry.stat)[:4] == ("file", entry.found.mode, 1, 1)
    with pytest.raises(BadRecord):
        unpack_stat(entry.stat[1:])


# ------------------------------------------------------------------------------------------------------------ attempts


def test_the_next_attempt_ends_what_the_last_one_runs(tmp_path: Path) -> None:
    """E-283: a write of an attempt that slept past its lease ends before the next begins, and never goes on."""
    with engine(tmp_path) as target:
        second = replace(target, attempt=2)

        def entries() -> object:
            yield NewEntry(b"a", size=300_000), [b"x" * 300_000]
            assert write_tree(second, [(NewEntry(b"mine", size=4), [b"mine"])]).entries == 1
            for number in range(100):
                yield NewEntry(b"b%02d" % number, size=300_000), [b"x" * 300_000]

        with pytest.raises(Interrupted):
            write_tree(target, entries())
        with pytest.raises(NotAccepted, match="stale"), list_tree(target):
            pass
        with list_tree(second) as listing:
            assert paths_of(listing) == [b"mine"]


def test_a_reader_of_a_followed_attempt_is_cut_off(tmp_path: Path) -> None:
    """E-283: an Engine that waits for a sleeping reader is free for the next attempt."""
    (tmp_path / "a").write_bytes(b"x" * BIG)
    with engine(tmp_path) as target:
        files = read_files(target, [b"a"])
        sleeping = next(files)
        with list_tree(replace(target, copy="op_other")) as listing:
            assert paths_of(listing) == [b"a"]
        with pytest.raises(Interrupted):
            assert len(b"".join(sleeping.data())) == BIG
        files.close()


def test_calls_of_one_attempt_run_side_by_side(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{'n' * 200}{number:04}").write_bytes(b"x")
    with engine(tmp_path) as target, list_tree(target) as listing:
        count = sum(1 for entry in listing for file in read_files(target, [entry.path]) if file.steady)
    assert count == 600


def test_a_followed_attempt_stays_followed() -> None:
    """E-283: neither an earlier attempt nor another Operation that was replaced comes back."""
    attempts = Attempts()
    ended = threading.Event()
    token = attempts.enter("a", 2, ended.set)
    for stale in (("a", 1), ("a", 0)):
        with pytest.raises(Refused):
            attempts.enter(*stale, ended.set)
    assert not ended.is_set()
    attempts.leave(token)
    attempts.leave(attempts.enter("b", 1, ended.set))
    with pytest.raises(Refused):
        attempts.enter("a", 2, ended.set)
    attempts.leave(attempts.enter("a", 3, ended.set))
    for number in range(2 * REMEMBERED):
        attempts.leave(attempts.enter(f"c{number}", 1, ended.set))
    assert len(attempts._seen) == REMEMBERED
