"""Streams and Engines that lie: nothing is written outside a workspace, and nothing wrong is taken for a disk."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from environments.compute.channel import EngineChannel
from environments.compute.contract import Interrupted, NotAccepted
from environments.compute.copying import (
    CopyFailed,
    NewEntry,
    Target,
    TooManyEntries,
    hold,
    list_tree,
    read_files,
    swap,
    write_tree,
)
from environments.compute.engine import records, wire
from tests.compute.copying.support import engine

FOLDER = NewEntry(b"d", "dir", 0o755)
FILE = NewEntry(b"d/f", size=3)


def raw(
    path: bytes, kind: int = records.FILE, *, size: int = 0, target: bytes = b"", count: int = records.WHOLE,
    more: bytes = b"", mode: int = 0o644, xattrs: int = 0,
) -> bytes:  # fmt: skip
    """One entry of a stream, with whatever the test wants to be wrong about it."""
    return records.WRITE.pack(kind, mode, 0, size, len(path), len(target), xattrs, count) + path + target + more


def extents(*pairs: tuple[int, int]) -> bytes:
    return b"".join(records.EXTENT.pack(*pair) for pair in pairs)


STREAMS = {
    "absolute": raw(b"/etc/x"),
    "up": raw(b"../x"),
    "up inside": raw(b"a", records.FOLDER) + raw(b"a/../../x"),
    "dot": raw(b"./x"),
    "empty component": raw(b"a", records.FOLDER) + raw(b"a//x"),
    "slash at the end": raw(b"a/", records.FOLDER),
    "empty": raw(b""),
    "NUL": raw(b"a\0b"),
    "beneath a link": raw(b"a", records.LINK, target=b"/tmp") + raw(b"a/x"),
    "beneath a file": raw(b"a") + raw(b"a/x"),
    "beneath nothing": raw(b"a/x"),
    "twice": raw(b"a") + raw(b"a"),
    "a folder twice": raw(b"a", records.FOLDER) + raw(b"a", records.FOLDER),
    "out of order": raw(b"b") + raw(b"a"),
    "content before a sibling": raw(b"a", records.FOLDER) + raw(b"a/x") + raw(b"a-b"),
    "another name of nothing": raw(b"a", records.NAME, target=b"A"),
    "another name of what is outside": raw(b"a", records.NAME, target=b"../outside/secret"),
    "another name of itself": raw(b"a", records.NAME, target=b"a"),
    "another name of a folder": raw(b"A", records.FOLDER) + raw(b"a", records.NAME, target=b"A"),
    "another name through a link": raw(b"L", records.LINK, target=b"../outside") + raw(
        b"a", records.NAME, target=b"L/secret"
    ),
    "unknown kind": raw(b"a", 9),
    "a mode of more bits": raw(b"a", mode=0o10644),
    "a link to nothing": raw(b"a", records.LINK),
    "a link with NUL": raw(b"a", records.LINK, target=b"x\0y"),
    "a folder with a size": raw(b"a", records.FOLDER, size=3, more=b"xxx"),
    "cut in the head": raw(b"a")[:10],
    "cut in the data": raw(b"a", size=100, more=b"x" * 99),
    "a size of 2^63": raw(b"a", size=1 << 63, count=0),
    "extents out of order": raw(b"a", size=100, count=2, more=extents((50, 10), (10, 10)) + bytes(20)),
    "extents that overlap": raw(b"a", size=100, count=2, more=extents((0, 60), (50, 10)) + bytes(70)),
    "an extent beyond the size": raw(b"a", size=100, count=1, more=extents((50, 51)) + bytes(51)),
    "an empty extent": raw(b"a", size=100, count=1, more=extents((50, 0))),
    "too many extents": raw(b"a", size=1 << 40, count=records.EXTENTS_MAX + 1),
    "attributes cut": raw(b"a", xattrs=3, more=b"\x06\xff\xff"),
    "a foreign attribute": raw(b"a", xattrs=20, more=b"\x0f\0\0\0\0trusted.overlay"),
    "too many attributes": raw(b"a", xattrs=records.XATTRS_MAX + 1),
    "a name of 256 bytes": raw(b"n" * 256),
}  # fmt: skip


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_a_hostile_stream_is_refused_and_the_disk_is_empty(tmp_path: Path, stream: bytes) -> None:
    """Pain 29: absolute paths, .., links as folders, foreign hard links and broken bounds write nothing outside."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "old").write_bytes(b"old")
    good = raw(b"!", records.FOLDER, mode=0) + raw(b"!/f", size=3, more=b"abc")
    with engine(root) as target:
        call = target.call("tree.write")
        with call:
            call.send_data(good + stream)
            call.end_body()
            with pytest.raises(CopyFailed) as failure:
                assert call.output
    assert failure.value.code == "tool.failed"
    assert os.listdir(root) == []
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").stat().st_nlink == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("what", ["link", "file", "folder"])
def test_what_stands_in_the_way_is_neither_followed_nor_replaced(tmp_path: Path, what: str) -> None:
    """A process that puts things at the next names while a disk is written changes nothing outside of it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
    (outside / "f").write_bytes(b"theirs")

    def entries() -> Iterator[tuple[NewEntry, list[bytes]]]:
        yield NewEntry(b"a", size=200_000), [b"x" * 200_000]  # more than waits to be sent
        yield NewEntry(b"b", size=200_000), [b"x" * 200_000]
        seen = threading.Event()
        while not (root / "a").exists():
            seen.wait(0.001)
        if what == "link":
            (root / "d").symlink_to(outside)
        elif what == "file":
            (root / "d").write_bytes(b"in the way")
        else:
            (root / "d").mkdir()
        yield FOLDER, []
        yield FILE, [b"abc"]

    with engine(root) as target, pytest.raises(CopyFailed):
        write_tree(target, entries())
    assert (outside / "f").read_bytes() == b"theirs"
    assert os.listdir(root) == []


def test_a_client_that_leaves_in_the_middle_ends_its_call(tmp_path: Path) -> None:
    """E-294: without the end of the stream nothing is complete; the next attempt begins with an empty disk."""
    with engine(tmp_path) as target:
        with pytest.raises(ZeroDivisionError):
            write_tree(
                target, ((NewEntry(b"%d" % number, size=1), [b"%d" % (1 // (3 - number))]) for number in range(9))
            )
        assert write_tree(target, [(FOLDER, ()), (FILE, [b"abc"])]).entries == 2
    assert sorted(os.listdir(tmp_path)) == ["d"]


# ------------------------------------------------------------------------------------------------------ hostile Engines


@contextmanager
def lying(*frames: bytes) -> Iterator[Target]:
    """An Engine that answers every call with ``frames`` and closes."""
    with tempfile.TemporaryDirectory(prefix="lie-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/s")
        listener.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client:
                        wire.read_frame(client)
                        for frame in frames:
                            client.sendall(frame)
                        client.shutdown(socket.SHUT_WR)
                        client.settimeout(5)
                        while client.recv(65536):
                            pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Target(EngineChannel(f"unix:{folder}/s"), 1, "op_test", 1, quiet_s=5)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=10)
            assert not thread.is_alive()


def stat_of(kind: int = records.FILE, mode: int = 0o644, size: int = 0) -> bytes:
    return records.STAT.pack(kind, mode, 1, size, 0, 0, 7)


Entry = tuple[bytes, bytes, bytes, bool]


def listed(path: bytes, stat: bytes = stat_of(), extra: bytes = b"", *, content: bool = False) -> Entry:
    return path, stat, extra, content


def group(*entries: Entry, count: int | None = None, paths: int = 0, extras: int = 0) -> bytes:
    """One group; ``count``, ``paths`` and ``extras`` are lies about it."""
    heads = [records.LISTED.pack(len(path), len(extra), content, stat) for path, stat, extra, content in entries]
    names, more = b"".join(entry[0] for entry in entries), b"".join(entry[2] for entry in entries)
    told = len(entries) if count is None else count
    return b"".join((records.GROUP.pack(told, len(names) + paths, len(more) + extras), *heads, names, more))


def data(*parts: bytes) -> bytes:
    return b"".join(wire.chunks(wire.DATA, b"".join(parts)))


def done(**output: object) -> bytes:
    return wire.encode_json(wire.RESULT, wire.completed(output))


ACCEPT = wire.encode(wire.ACCEPTED)
CLOCK = records.CLOCK.pack(5)
COUNTS = {"skipped": 0, "unreachable": 0, "clockNs": 5}
LISTINGS = {
    "absolute": group(listed(b"/a")),
    "up": group(listed(b"../a")),
    "twice": group(listed(b"a"), listed(b"a")),
    "twice in two groups": group(listed(b"a")) + group(listed(b"a")),
    "out of order": group(listed(b"b"), listed(b"a")),
    "beneath a file": group(listed(b"a"), listed(b"a/b")),
    "beneath a link": group(listed(b"a", stat_of(records.LINK), b"x"), listed(b"a/b")),
    "beneath nothing": group(listed(b"a/b")),
    "unknown kind": group(listed(b"a", stat_of(4))),
    "a mode of more bits": group(listed(b"a", stat_of(mode=0o100644))),
    "a size of 2^63": group(listed(b"a", stat_of(size=1 << 63))),
    "a link to nothing": group(listed(b"a", stat_of(records.LINK))),
    "a link with NUL": group(listed(b"a", stat_of(records.LINK), b"x\0")),
    "a file with an extra": group(listed(b"a", extra=b"x")),
    "less content than its size": group(listed(b"a", stat_of(size=2), b"x", content=True)),
    "more content than its size": group(listed(b"a", stat_of(), b"x", content=True)),
    "a folder with content": group(listed(b"a", stat_of(records.FOLDER), content=True)),
    "a group of nothing": group(),
    "a group of too many": group(*(listed(b"%04d" % number) for number in range(records.GROUP_MAX + 1))),
    "more extras than a group has": records.GROUP.pack(1, 1, records.PIECE + records.XATTRS_MAX + 1),
    "more paths than a group has": records.GROUP.pack(1, records.PIECE + records.PATH_MAX + 1, 0),
    "paths of nothing": group(listed(b"a"), paths=1) + b"b",
    "extras of nothing": group(listed(b"a"), extras=1) + b"b",
    "fewer paths than entries": group(listed(b"a"), listed(b"b"), paths=-1),
    "foreign attributes": group(listed(b"a", stat_of(records.FOLDER), records.pack_xattrs({b"trusted.x": b"1"}))),
    "cut": group(listed(b"a"))[:-1],
    "another count": group(listed(b"a"), listed(b"b")),
}


@pytest.mark.parametrize("answer", LISTINGS.values(), ids=LISTINGS.keys())
def test_a_listing_outside_the_grammar_ends_the_copy(answer: bytes) -> None:
    """E-294: an entry outside the grammar ends the copy as tool.failed."""
    frames = (ACCEPT, data(CLOCK, answer), done(entries=1, **COUNTS))
    with lying(*frames) as target, pytest.raises(CopyFailed) as failure, list_tree(target) as listing:
        list(listing)
    assert failure.value.code == "tool.failed"


def test_more_entries_than_wanted_end_the_listing() -> None:
    """E-294: however much an Engine lists, a copy takes what its limit allows."""
    answer = data(CLOCK, group(*(listed(b"%03d" % number) for number in range(20))))
    with lying(ACCEPT, answer, done(entries=20, **COUNTS)) as target:
        with list_tree(target, most_entries=20) as listing:
            assert len(list(listing)) == 20
        with pytest.raises(TooManyEntries) as failure, list_tree(target, most_entries=19) as listing:
            list(listing)
    assert failure.value.most == 19


def one_read(
    status: int = records.OK, stat: bytes = stat_of(size=3), count: int = records.WHOLE, more: bytes = b"abc"
) -> bytes:
    return records.READ.pack(status, stat, 0, count) + more


END = records.READ_END.pack(stat_of(size=3), 0)
READINGS = {
    "unknown status": one_read(9) + END,
    "a folder": one_read(stat=stat_of(records.FOLDER)) + END,
    "less data": one_read(more=b"ab"),
    "no end": one_read(),
    "more data": one_read() + END + b"x",
    "another end": one_read() + records.READ_END.pack(stat_of(9), 0),
    "too many extents": one_read(count=records.EXTENTS_MAX + 1),
    "extents beyond the size": one_read(count=1, more=extents((0, 4)) + b"abcd") + END,
    "nothing": b"",
}


@pytest.mark.parametrize("answer", READINGS.values(), ids=READINGS.keys())
def test_a_read_that_is_not_what_was_asked_for_ends_the_copy(answer: bytes) -> None:
    """E-294: data is exactly as long as its extents say, and one answer belongs to one file."""
    with lying(ACCEPT, data(answer), done(files=1)) as target, pytest.raises(CopyFailed) as failure:
        for file in read_files(target, [b"f"]):
            b"".join(file.data())
    assert failure.value.code == "tool.failed"


CALLS: dict[str, Callable[[Target], object]] = {
    "list": lambda target: list(list_tree(target).__enter__()),
    "read": lambda target: list(read_files(target, [b"f"])),
    "write": lambda target: write_tree(target, [(FOLDER, ())]),
    "swap": lambda target: swap(target, "s"),
    "hold": lambda target: hold(target).__enter__(),
}


@pytest.mark.parametrize("run", CALLS.values(), ids=CALLS.keys())
def test_endings_are_told_apart(run: Callable[[Target], object]) -> None:
    """E-294: refused before it ran, broken in the middle, failed, and nonsense are four things."""
    failed = wire.encode_json(wire.RESULT, wire.failed("tool.no_space", "full"))
    refused = wire.encode_json(wire.REFUSED, {"reason": "epoch", "message": "m"})
    for frames, error, words in (
        ((refused,), NotAccepted, "epoch"),
        ((), NotAccepted, "before it accepted"),
        ((b"Q\0\0\0\0",), NotAccepted, "unknown frame"),
        ((ACCEPT,), Interrupted, "ended the connection"),
        ((ACCEPT, b"D\0\0\1\0abc"), (Interrupted, CopyFailed), None),
        ((ACCEPT, failed), CopyFailed, None),
        ((ACCEPT, b"D\xff\0\0\0"), CopyFailed, "over its limit"),
        ((ACCEPT, wire.encode(wire.OUT, b"x")), CopyFailed, "out of its turn"),
        ((ACCEPT, wire.encode(wire.RESULT, b"{}")), CopyFailed, "neither completed nor failed"),
        ((ACCEPT, done(nonsense=1)), CopyFailed, None),
    ):
        with lying(*frames) as target, pytest.raises(error, match=words):
            run(target)


def test_an_engine_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    """A silent Engine does not hold a copy for ever."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        target = Target(EngineChannel(f"unix:{tmp_path / 's'}"), 1, "op_test", 1, quiet_s=0.1)
        with pytest.raises(Interrupted), list_tree(target):
            pass
        cancelled = threading.Event()
        cancelled.set()
        target = Target(EngineChannel(f"unix:{tmp_path / 's'}"), 1, "op_test", 1, cancel=cancelled)
        with pytest.raises(CopyFailed) as failure, list_tree(target):
            pass
    assert failure.value.code == "tool.cancelled"


@pytest.mark.parametrize(
    "bad", [b"", b"/a", b"a/", b"a//b", b".", b"..", b"a/./b", b"a/../b", b"../a", b"a/..", b"a\0b"]
)
@pytest.mark.parametrize("place", range(3))
def test_paths_are_checked_together_as_they_are_one_by_one(bad: bytes, place: int) -> None:
    """E-294: no path that is refused alone passes among others."""
    paths = [b"b", b"...", b"c/.d"]
    records.check_paths(paths)
    paths[place] = bad
    for check in (lambda: records.check_paths(paths), lambda: records.check_path(bad)):
        with pytest.raises(records.BadRecord):
            check()
