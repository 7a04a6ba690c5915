"""The store in a folder: what is synced when, writers that die or meet, and a folder that goes away."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nylorun.blobs import BlobMissing, FileSystemStore, StoreUnavailable
from nylorun.blobs.filesystem import ABANDONED_SECONDS, YOUNG_SECONDS
from tests.blobs.helpers import Child, names, noise

KEY = "ab" + "0" * 62
OTHER = "ab" + "1" * 62

Call = tuple[str, str]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What is asked of the kernel, in order: fsync, rename, mkdir and unlink, with the paths they are for."""
    seen: list[Call] = []
    fsync, rename, mkdir, unlink = os.fsync, os.rename, os.mkdir, os.unlink

    def on_fsync(handle: int) -> None:
        seen.append(("fsync", os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def on_rename(source: str, target: str) -> None:
        seen.append(("rename", target))
        rename(source, target)

    def on_mkdir(path: str, *rest: Any) -> None:
        seen.append(("mkdir", path))
        mkdir(path, *rest)

    def on_unlink(path: str) -> None:
        seen.append(("unlink", path))
        unlink(path)

    for name, double in (("fsync", on_fsync), ("rename", on_rename), ("mkdir", on_mkdir), ("unlink", on_unlink)):
        monkeypatch.setattr(os, name, double)
    return seen


def short(calls: list[Call], store: FileSystemStore) -> list[Call]:
    """The same with paths from the store on, a temporary file as ``tmp``."""
    result = []
    for call, path in calls:
        below = os.path.relpath(path, store.folder)
        result.append((call, "tmp" if below.startswith("tmp/") else below))
    return result


def test_a_put_is_durable(folder: FileSystemStore, calls: list[Call]) -> None:
    """E-277: the file is synced before it has its name, the name and new folders before the put returns."""
    folder.put(KEY, b"data")
    group = ["ab", f"ab/{KEY}"]
    assert short(calls, folder) == [
        ("fsync", "tmp"),
        ("rename", group[1]),  # there is no such folder yet
        ("mkdir", group[0]),
        ("fsync", "."),
        ("rename", group[1]),
        ("fsync", group[0]),
    ]
    calls.clear()
    folder.put(OTHER, b"data")
    assert short(calls, folder) == [("fsync", "tmp"), ("rename", f"ab/{OTHER}"), ("fsync", "ab")]


def test_what_is_there_is_durable(folder: FileSystemStore, calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    """E-277: a blob that another writer renamed a moment ago is not relied on before its name is synced."""
    folder.put(KEY, b"data")
    calls.clear()
    assert folder.has(KEY)
    assert short(calls, folder) == [("fsync", "ab")]
    calls.clear()
    monkeypatch.setattr("nylorun.blobs.filesystem.YOUNG_SECONDS", -YOUNG_SECONDS)
    assert folder.has(KEY)
    assert calls == []


def test_another_writer_may_make_the_folder_first(folder: FileSystemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-129: between a rename that fails for want of it and its making."""
    mkdir = os.mkdir

    def too_late(path: str, mode: int) -> None:
        mkdir(path, mode)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "mkdir", too_late)
    folder.put(KEY, b"data")
    assert folder.get(KEY) == b"data"


@pytest.mark.parametrize("failing", ["write", "fsync", "rename"])
def test_a_failed_put_leaves_nothing(folder: FileSystemStore, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """E-227: a full disk is infrastructure; no part of a blob stays."""

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, fails)
        with pytest.raises(StoreUnavailable, match="No space left"):
            folder.put(KEY, b"data")
    assert [path for path in Path(folder.folder).rglob("*") if path.is_file()] == []
    assert not folder.has(KEY)


def test_short_writes_are_continued(folder: FileSystemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may take less than it is given."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, bytes(data[:1000])))
    folder.put(KEY, noise(5500))
    assert folder.get(KEY) == noise(5500)


def test_a_folder_that_went_away_has_not_lost_its_blobs(folder: FileSystemStore) -> None:
    """Unknown is not gone: a disk that is not mounted says neither missing nor deleted."""
    folder.put(KEY, b"data")
    away = folder.folder + ".away"
    os.rename(folder.folder, away)
    os.mkdir(folder.folder)  # the empty place where the disk is mounted
    for call in (folder.get, folder.has, folder.delete):
        with pytest.raises(StoreUnavailable, match="not there"):
            call(KEY)
    with pytest.raises(StoreUnavailable):
        folder.put(KEY, b"data")
    with pytest.raises(StoreUnavailable):
        folder.check()
    os.rmdir(folder.folder)
    with pytest.raises(StoreUnavailable):
        list(folder.list())
    os.rename(away, folder.folder)
    folder.check()
    assert folder.get(KEY) == b"data"


def test_a_folder_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """The reason names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=str(tmp_path)):
        FileSystemStore(tmp_path / "file" / "blobs")


def test_only_this_user_reads_blobs(folder: FileSystemStore) -> None:
    """Disks hold people's data."""
    folder.put(KEY, b"data")
    paths = [Path(folder.folder), *Path(folder.folder).rglob("*")]
    assert [path for path in paths if path.stat().st_mode & 0o077] == []


def test_leftovers_of_killed_writers_are_removed_after_a_day(folder: FileSystemStore) -> None:
    """E-288: found by their place, never listed as blobs, and left alone while a writer may still be at work."""
    temporary = Path(folder.folder) / "tmp"
    old, new = temporary / f"{KEY}.0011223344556677", temporary / f"{OTHER}.0011223344556677"
    for path in (old, new):
        path.write_bytes(b"part")
    past = old.stat().st_mtime - ABANDONED_SECONDS - 60
    os.utime(old, (past, past))
    folder.put(KEY, b"data")
    assert names(folder) == {KEY}
    assert (old.exists(), new.exists()) == (False, True)


def test_blobs_that_go_while_they_are_listed_are_no_failure(folder: FileSystemStore) -> None:
    """E-288: a collector lists while another one deletes."""
    keys = [f"ab{number:062x}" for number in range(50)]
    for key in keys:
        folder.put(key, b"")
    seen = set()
    for blob in folder.list():
        seen.add(blob.key)
        for key in keys:
            folder.delete(key)
    assert len(seen) == 1


def test_threads_may_put_the_same_and_other_keys(tmp_path: Path) -> None:
    """E-129: each key whole, no temporary file left, from a folder that is new to all of them."""
    store = FileSystemStore(tmp_path / "new")
    keys = [f"{number % 7:02x}{number:062x}" for number in range(40)] * 4

    def put(key: str) -> None:
        store.put(key, noise(50_000, int(key[2:], 16)))
        assert store.get(key) == noise(50_000, int(key[2:], 16))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, keys))
    assert names(store) == set(keys)
    assert os.listdir(tmp_path / "new" / "tmp") == []


PUTS = """
import random, sys
from nylorun.blobs import FileSystemStore
store = FileSystemStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
while True:
    for number in range(20):
        store.put(f"ab{number:062x}", random.Random(number).randbytes(300_000))
    print("round", flush=True)
"""


def test_processes_may_put_the_same_keys_and_be_killed(folder: FileSystemStore) -> None:
    """E-129: three processes put the same blobs until they are killed; every blob is whole."""
    with Child(PUTS, folder.folder) as one, Child(PUTS, folder.folder) as two, Child(PUTS, folder.folder) as three:
        for writer in (one, two, three):
            writer.go()
        assert [writer.line() for writer in (one, two, three)] == ["round"] * 3
    assert names(folder) == {f"ab{number:062x}" for number in range(20)}
    for number in range(20):
        assert folder.get(f"ab{number:062x}") == noise(300_000, number)


def test_a_copy_of_the_folder_is_a_backup(folder: FileSystemStore, tmp_path: Path) -> None:
    """disk §2: the folder is all there is."""
    folder.put(KEY, b"data")
    shutil.copytree(folder.folder, tmp_path / "copy")
    copy = FileSystemStore(tmp_path / "copy")
    assert copy.get(KEY) == b"data"
    copy.delete(KEY)
    with pytest.raises(BlobMissing):
        copy.get(KEY)
