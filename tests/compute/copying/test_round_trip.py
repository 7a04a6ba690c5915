"""A disk that is listed, read and written anew is the same disk."""

from __future__ import annotations

import errno
import os
import resource
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.compute.copying import CopyFailed, NewEntry, list_tree, read_files, write_tree
from environments.compute.engine.descent import OPEN
from environments.compute.engine.listing import Listing
from environments.compute.engine.reading import SMALL, find_extents
from environments.compute.engine.records import CLOCK, EXTENTS_MAX
from tests.compute.copying.support import MIB, copy, engine, look, paths_of

NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"/" not in name and b"\0" not in name
) | st.sampled_from(
    [b"a", b"a-b", b"a.txt", b"a b", b"\xff", b"\xc3\x28", "ä".encode(), b"a" * 255, b"-", b"...", b"\n"]
)
ATTRIBUTES = st.dictionaries(st.sampled_from(["user.a", "user.\udcff", "user.long.name"]), st.binary(max_size=300))
TIMES = st.integers(-(1 << 31) * 10**9, (1 << 33) * 10**9) | st.sampled_from([0, 1, -1, 4 * 10**18])


@st.composite
def things(draw: st.DrawFn) -> tuple[str, object]:
    kind = draw(st.sampled_from(["file", "file", "dir", "dir", "link", "sparse", "name"]))
    content: object = None
    if kind == "file":
        content = draw(st.binary(max_size=2000) | st.integers(60_000, 300_000).map(lambda size: b"\x01" * size))
    elif kind == "link":
        content = draw(st.binary(min_size=1, max_size=200).filter(lambda target: b"\0" not in target))
    elif kind == "sparse":
        content = draw(st.lists(st.integers(0, 60), max_size=4))
    return kind, content


ENTRIES = st.lists(
    st.tuples(NAMES, things(), st.integers(0, 0o7777), TIMES, ATTRIBUTES, st.integers(0, 50)), max_size=25
)


def build(root: bytes, entries: list[tuple[bytes, tuple[str, object], int, int, dict[str, bytes], int]]) -> None:
    """Make what the entries say; each lies in one of the folders made before it."""
    folders, files, made = [root], [], []
    for name, (kind, content), mode, time_ns, attributes, choice in entries:
        path = os.path.join(folders[choice % len(folders)], name)
        if name in (b".", b"..") or os.path.lexists(path):
            continue
        if kind == "name":
            if files:
                os.link(files[choice % len(files)], path)
            continue
        _make(path, kind, content)
        for key, value in attributes.items() if kind != "link" else ():
            os.setxattr(path, key, value)
        {"dir": folders, "link": []}.get(kind, files).append(path)
        made.append((path, kind, mode, time_ns))
    for path, kind, mode, time_ns in reversed(made):
        if kind != "link":
            os.chmod(path, mode)
        os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)


def _make(path: bytes, kind: str, content: object) -> None:
    if kind == "dir":
        os.mkdir(path)
    elif isinstance(content, bytes) and kind == "link":
        os.symlink(content, path)
    else:
        _file(path, content)


def _file(path: bytes, content: object) -> None:
    with open(path, "wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            assert isinstance(content, list)
            for place in content:
                file.seek(place * 64 * 1024)
                file.write(b"data")
            file.truncate(4 * MIB)


@settings(max_examples=60, deadline=None)
@given(entries=ENTRIES)
def test_a_copied_disk_is_the_same(tmp_path_factory: pytest.TempPathFactory, entries: list) -> None:
    """E-277: names, modes, times, links, hard links, holes and attributes come back byte for byte, in order."""
    folder = tmp_path_factory.mktemp("disks")
    source, target = folder / "source", folder / "target"
    source.mkdir()
    target.mkdir()
    build(os.fsencode(source), entries)
    found = look(source)
    with engine(source) as origin, engine(target) as copied:
        copy(origin, copied)
        with list_tree(origin) as listing:
            there = paths_of(listing)
        with list_tree(copied) as listing:
            assert paths_of(listing) == there
    assert look(target) == found
    assert look(source) == found
    assert there == sorted(found)


def test_times_beyond_what_a_record_holds_are_cut_and_fail_nothing(tmp_path: Path) -> None:
    """E-277: a file of the year 2400 is copied with the last time that 64 bits of nanoseconds hold."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "late").write_bytes(b"x")
    os.utime(source / "late", (13_600_000_000, 13_600_000_000))
    with engine(source) as origin, engine(target) as copied:
        copy(origin, copied)
    assert (target / "late").stat().st_mtime_ns == (1 << 63) - 1


def test_what_was_there_is_replaced_and_sockets_and_pipes_are_left_out(tmp_path: Path) -> None:
    """E-277: sockets, pipes and devices are counted and left out; nothing of the old disk stays."""
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target / "old" / "deep"):
        folder.mkdir(parents=True)
    (target / "old" / "deep" / "file").write_bytes(b"old")
    (target / "old" / "deep").chmod(0)
    (source / "kept").write_bytes(b"new")
    os.mkfifo(source / "pipe")
    os.mknod(source / "socket", stat.S_IFSOCK | 0o600)
    before = (target.stat().st_ino, target.stat().st_mode)
    with engine(source) as origin, engine(target) as copied:
        with list_tree(origin) as listing:
            assert paths_of(listing) == [b"kept"]
        assert (listing.skipped, listing.unreachable) == (2, 0)
        written = copy(origin, copied)
    assert (written.entries, written.size) == (1, 3)
    assert os.listdir(target) == ["kept"]
    assert (target.stat().st_ino, target.stat().st_mode) == before


@pytest.mark.parametrize("names_bytes", [400, 4000])
def test_a_folder_is_read_again_rather_than_held(
    tmp_path: Path, names_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for names is bounded: the walk is the same with room for a few names as with room for all."""
    for folder in ("", "a", "a/deep", "b", "a-b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for number in range(60):
            (tmp_path / folder / f"f{number}").touch()
            (tmp_path / folder / f"d{number}").mkdir()
    pieces: list[list[bytes]] = [[], []]
    root = os.open(tmp_path, os.O_RDONLY)
    bounded = Listing(root, pieces[1].append, names_bytes=names_bytes)
    held: list[int] = []
    keys = bounded._keys
    monkeypatch.setattr(bounded, "_keys", lambda *of: held.append(len(keys(*of)[0])) or keys(*of))
    results = [Listing(root, pieces[0].append).run(), bounded.run()]
    assert max(held) <= names_bytes // 40
    os.close(root)
    walks = [b"".join(found)[CLOCK.size :] for found in pieces]
    assert walks[0] == walks[1]
    assert [result["entries"] for result in results] == [604, 604]


@pytest.mark.parametrize("name", [b"d", b"d" * 200], ids=["many levels", "a path beyond PATH_MAX"])
def test_depth_does_not_matter(tmp_path: Path, name: bytes) -> None:
    """E-277: 300 levels, of 60 kB of path, take no more handles than a few and come back with their times."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    handle = os.open(source, os.O_RDONLY)
    for _ in range(300):
        os.mkdir(name, dir_fd=handle)
        below = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(os.open("beside", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
        os.close(handle)
        handle = below
    bottom = os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=handle)
    os.write(bottom, b"x" * 1000)
    for one in (bottom, handle):
        os.close(one)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with engine(source) as origin, engine(target) as copied:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4 * OPEN + 40, hard))
        try:
            written = copy(origin, copied)
            with list_tree(copied) as listing:
                entries = list(listing)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with list_tree(origin) as listing:
            stats = [(entry.path, *entry.found[:4]) for entry in listing]
    assert [(entry.path, *entry.found[:4]) for entry in entries] == stats
    assert (written.entries, written.size) == (601, 1000)
    assert stats[-1][0] == b"/".join([name] * 300) + b"/bottom"


def test_a_sparse_file_takes_the_time_and_room_of_its_data(tmp_path: Path) -> None:
    """Pain 22: 10 GiB with three pieces of data are copied as 12 kB."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    with open(source / "disk", "wb") as file:
        for place in (0, 5 << 30, (10 << 30) - 4096):
            file.seek(place)
            file.write(b"\x07" * 4096)
    began = time.monotonic()
    with engine(source) as origin, engine(target) as copied:
        assert copy(origin, copied).size == 3 * 4096
    assert time.monotonic() - began < 20
    status = (target / "disk").stat()
    assert (status.st_size, status.st_blocks * 512 < 64 * 1024) == (10 << 30, True)
    with open(target / "disk", "rb") as file:
        for place, byte in ((0, 7), (4096, 0), (5 << 30, 7), ((10 << 30) - 1, 7)):
            file.seek(place)
            assert file.read(1) == bytes([byte])


def test_a_file_of_many_holes_is_told_in_few_extents(tmp_path: Path) -> None:
    """An extent list is bounded: the smallest holes of a file with too many are read as zeros."""
    with open(tmp_path / "holes", "wb") as file:
        for number in range(EXTENTS_MAX + 100):
            file.seek(number * 8192)
            file.write(b"x")
        file.seek(4 << 30)
        file.write(b"end")
    handle = os.open(tmp_path / "holes", os.O_RDONLY)
    size = os.fstat(handle).st_size
    extents = find_extents(handle, size)
    os.close(handle)
    assert extents is not None
    assert len(extents) <= EXTENTS_MAX
    assert extents[-1][0] == 4 << 30
    assert sum(length for _, length in extents) < 256 * MIB


def test_files_are_read_in_any_order_and_what_is_not_taken_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(5):
        (tmp_path / "a" / str(number)).write_bytes(bytes([number]) * (1 + 200_000 * number))
    wanted = [b"a/4", b"a/0", b"a/3", b"a/nothing", b"a", b"a/1"]
    with engine(tmp_path) as target:
        found = [(file.path, file.status, file.found.size, file.steady) for file in read_files(target, wanted)]
        first = [b"".join(file.data()) for file in read_files(target, [b"a/2"])]
    assert found == [
        (b"a/4", "ok", 800_001, True), (b"a/0", "ok", 1, True), (b"a/3", "ok", 600_001, True),
        (b"a/nothing", "missing", 0, False), (b"a", "other", 0, False), (b"a/1", "ok", 200_001, True),
    ]  # fmt: skip
    assert first == [b"\x02" * 400_001]


def test_an_empty_disk_is_written_as_one(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    with engine(tmp_path) as target:
        assert write_tree(target, []).entries == 0
        with list_tree(target) as listing:
            assert list(listing) == []
    assert os.listdir(tmp_path) == []


def test_a_data_stream_that_is_not_as_long_as_its_entry_says_ends_the_copy(tmp_path: Path) -> None:
    """A damaged version is never half restored as if it were whole."""
    with engine(tmp_path) as target:
        for data in (b"xx", b"xxxx"):
            with pytest.raises(CopyFailed):
                write_tree(target, [(NewEntry(b"f", size=3), [data])])


def test_small_plain_files_come_with_the_walk_and_nothing_else_does(tmp_path: Path) -> None:
    """With content, a walk holds what a read would give; links, holes, attributes and several names stay out."""
    (tmp_path / "plain").write_bytes(b"some text")
    (tmp_path / "empty").touch()
    (tmp_path / "largest").write_bytes(b"x" * SMALL)
    whole = {b"plain": b"some text", b"empty": b"", b"largest": b"x" * SMALL}
    (tmp_path / "too-large").write_bytes(b"x" * (SMALL + 1))
    (tmp_path / "two").write_bytes(b"names")
    os.link(tmp_path / "two", tmp_path / "three")
    (tmp_path / "noted").write_bytes(b"x")
    os.setxattr(tmp_path / "noted", "user.note", b"1")
    with open(tmp_path / "hole", "wb") as file:
        file.truncate(SMALL)
    (tmp_path / "link").symlink_to("plain")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for number in range(200):
        (tmp_path / "folder" / f"{number:03}").write_bytes(b"%d" % number * number)
        whole[b"folder/%03d" % number] = b"%d" % number * number
    with engine(tmp_path) as target:
        with list_tree(target) as listing:
            bare = list(listing)
        with list_tree(target, content=True) as listing:
            full = list(listing)
            assert listing.skipped == 1
    assert {entry.path: entry.extra for entry in full if entry.has_content} == whole
    assert [(entry.path, entry.stat) for entry in full] == [(entry.path, entry.stat) for entry in bare]
    assert not any(entry.has_content for entry in bare)


def test_a_file_that_changes_under_the_walk_is_only_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is of one moment, or it is read again by its name."""
    for name in ("grown", "steady", "unreadable"):
        (tmp_path / name).write_bytes(b"abc")
    real = os.pread

    def pread(handle: int, size: int, offset: int) -> bytes:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if path.endswith("unreadable"):
            raise OSError(errno.EIO, "damaged")
        data = real(handle, size, offset)
        if path.endswith("grown"):
            (tmp_path / "grown").write_bytes(b"abcdef")
        return data

    monkeypatch.setattr("environments.compute.engine.listing.os.pread", pread)
    with engine(tmp_path) as target, list_tree(target, content=True) as listing:
        found = {entry.path: (entry.has_content, entry.extra) for entry in listing}
    assert found == {b"grown": (False, b""), b"steady": (True, b"abc"), b"unreadable": (False, b"")}
