"""A tree is read back as it was written, whatever a file system allows; what is no tree is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nylorun.blobs import BadTree, Entry, MemoryStore, TreeReader, TreeTooLarge, TreeWriter, blobs, verify
from nylorun.blobs.cutting import BLOCK_MAX, CHUNK_MAX, CHUNK_MIN, SMALL
from tests.blobs.helpers import Item, add, file, folder, link, names, no_claim, noise, read, sparse, write

NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: b"/" not in name and b"\0" not in name)
LEGAL = NAMES.filter(lambda name: name not in (b".", b".."))
MODES = st.integers(0, 0o7777)
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
XATTRS = st.dictionaries(
    st.binary(max_size=8).map(lambda name: b"user." + name.replace(b"\0", b"0")), st.binary(max_size=40), max_size=3
)
DATA = st.one_of(st.binary(max_size=300), st.builds(noise, st.integers(0, 3 * SMALL), st.integers(0, 5)))
COMMON: dict[str, Any] = {"mode": MODES, "mtime_ns": TIMES, "stat": st.binary(max_size=64), "xattrs": XATTRS}


@st.composite
def holed(draw: st.DrawFn) -> tuple[int, tuple[tuple[int, int], ...] | None, bytes]:
    """A size, extents and their data."""
    data = draw(DATA)
    if draw(st.booleans()):
        return len(data), None, data
    extents, position, left = [], 0, len(data)
    while left:
        position += draw(st.integers(0, 1 << 20))
        length = draw(st.integers(1, left))
        extents.append((position, length))
        position, left = position + length, left - length
    return position + draw(st.integers(0, 1 << 20)), tuple(extents), data


@st.composite
def trees(draw: st.DrawFn) -> list[Item]:
    """Any small tree, with later names."""
    folders, taken, items, firsts = [b""], {b""}, [], []
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.sampled_from(folders))
        path = (parent + b"/" if parent else b"") + draw(LEGAL)
        if path in taken:
            continue
        taken.add(path)
        kind = draw(st.sampled_from(["dir", "file", "link"]))
        fields = {name: draw(strategy) for name, strategy in COMMON.items()}
        if kind == "dir":
            folders.append(path)
            items.append((Entry(path, "dir", **fields), b""))
        elif kind == "link":
            items.append((Entry(path, "link", target=draw(NAMES), **fields), b""))
        else:
            size, extents, data = draw(holed())
            items.append((Entry(path, "file", size=size, extents=extents, **fields), data))
            firsts.append((path, fields))
    for first, fields in firsts:
        parent = draw(st.sampled_from(folders))
        path = (parent + b"/" if parent else b"") + draw(LEGAL)
        if path > first and path not in taken:
            taken.add(path)
            items.append((Entry(path, "file", hardlink=first, **fields), b""))
    return sorted(items, key=lambda item: item[0].path)


def apparent(entry: Entry, data: bytes) -> bytes:
    """The content that a program sees."""
    if entry.extents is None:
        return data
    content, at = bytearray(entry.size), 0
    for offset, length in entry.extents:
        content[offset : offset + length] = data[at : at + length]
        at += length
    return bytes(content)


@given(trees(), st.integers(1, 1 << 17))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_tree_comes_back(items: list[Item], piece: int) -> None:
    """E-277: kinds, names, modes, times, attributes, holes, later names and contents are the same."""
    store = MemoryStore()
    tree = write(store, items, piece=piece)
    assert read(store, tree.root) == items
    reader = TreeReader(store, tree.root)
    contents = {entry.path: apparent(entry, data) for entry, data in items if entry.kind == "file"}
    for entry in reader.entries():
        if entry.kind == "file":
            content = contents[entry.hardlink or entry.path]
            assert b"".join(reader.read(entry)) == content
            assert (entry.size, entry.sha256) == (len(content), hashlib.sha256(content).digest())
    assert (tree.files, reader.files) == (len(items), len(items))
    assert tree.size == reader.size == sum(entry.size for entry in reader.entries())
    assert list(verify(store, tree.root)) == []
    assert dict(blobs(store, tree.root)).keys() == names(store)


@given(holed(), st.data())
@settings(max_examples=60, deadline=None)
def test_any_part_of_a_file_can_be_read(
    shape: tuple[int, tuple[tuple[int, int], ...] | None, bytes], draw: st.DataObject
) -> None:
    """E-277: ranges, across holes and beyond the end."""
    size, extents, data = shape
    entry, data = file(b"f", data, size=size, extents=extents)
    store = MemoryStore()
    reader = TreeReader(store, write(store, [(entry, data)]).root)
    content, found = apparent(entry, data), reader.find(b"f")
    assert found is not None
    for _ in range(5):
        offset, length = draw.draw(st.integers(0, size + 10)), draw.draw(st.none() | st.integers(0, size + 10))
        end = None if length is None else offset + length
        assert b"".join(reader.read(found, offset, length)) == content[offset:end]


def test_names_may_be_any_bytes() -> None:
    """E-277: no UTF-8, spaces, newlines, quotes, every single byte, the longest components."""
    odd = [b"\xff\xfe", b" ", b"\n", b'"', b"\\", b"\xed\xb3\xbf", b"...", b"..a", b"-rf", "ü".encode(), b"a" * 255]
    odd += [bytes([byte]) for byte in range(1, 256) if byte not in b"/."]
    items = [file(name, name) for name in sorted(set(odd))]
    store = MemoryStore()
    assert read(store, write(store, items).root) == items


def test_folders_may_be_deep() -> None:
    """E-277: 200 levels with components of 255 bytes, a path of 51 kB."""
    path, items = b"", []
    for level in range(200):
        path = (path + b"/" if path else b"") + bytes([97 + level % 26]) * 255
        items.append(folder(path))
    items.append(file(path + b"/f", b"deep"))
    store = MemoryStore()
    tree = write(store, items)
    assert read(store, tree.root) == items
    found = TreeReader(store, tree.root).find(path + b"/f")
    assert found is not None
    assert list(TreeReader(store, tree.root).read(found)) == [b"deep"]


def test_a_file_of_many_gigabytes_may_be_nearly_empty() -> None:
    """E-277: 5 GiB of holes store two extents.

    Above 4 GiB, where 32 bits end; ten would only hash zeros for longer.
    """
    size = 5 << 30
    item = sparse(b"hole", size, [(0, b"begin"), (size - 4096, noise(4000))])
    store = MemoryStore()
    tree = write(store, [item])
    assert tree.size == size
    assert sum(blob.size for blob in store.list()) < 6000
    assert read(store, tree.root) == [item]
    reader = TreeReader(store, tree.root)
    entry = reader.find(b"hole")
    assert entry is not None
    assert b"".join(reader.read(entry, 0, 10)) == b"begin" + bytes(5)
    assert b"".join(reader.read(entry, size - 4100, 10)) == bytes(4) + noise(4000)[:6]
    assert b"".join(reader.read(entry, (4 << 30) - 2, 4)) == bytes(4)


@pytest.mark.parametrize(
    "size", [0, 1, SMALL - 1, SMALL, SMALL + 1, CHUNK_MIN + 1, CHUNK_MAX, CHUNK_MAX + 1, 8 << 20, (16 << 20) + 1]
)
def test_files_of_every_size_come_back(size: int) -> None:
    """E-129: at the borders between packing and cutting, and of the cutter's window."""
    items = [file(b"f", noise(size))]
    store = MemoryStore()
    tree = write(store, items, piece=100_003)
    assert read(store, tree.root) == items
    assert list(verify(store, tree.root)) == []


def test_small_files_make_few_blobs() -> None:
    """E-129: ten thousand files of 1 kB are some blocks and some segments; no block is larger than it may be."""
    items = [file(b"%05d" % number, noise(1000, number)) for number in range(10_000)]
    store = MemoryStore()
    tree = write(store, items)
    sizes = dict(blobs(store, tree.root))
    assert len(sizes) < 40
    assert max(sizes.values()) <= BLOCK_MAX + 1000


def test_a_part_of_a_tree_can_be_found() -> None:
    """E-129: by path and below a folder, across segments of the index."""
    items = [folder(b"a"), folder(b"a-b"), *(file(b"a-b/%04d" % number) for number in range(3000))]
    items += [file(b"a/%04d" % number, b"%d" % number) for number in range(3000)]
    store = MemoryStore()
    reader = TreeReader(store, write(store, items).root)
    assert len(reader.segments()) > 3
    for path in (b"a", b"a-b/0000", b"a-b/2999", b"a/0000", b"a/1500", b"a/2999"):
        found = reader.find(path)
        assert found is not None
        assert found.path == path
    assert [reader.find(path) for path in (b"", b"A", b"a/", b"a/3000", b"b", b"a-b/15")] == [None] * 6
    assert [entry.path for entry in reader.below(b"a")] == [b"a/%04d" % number for number in range(3000)]
    assert list(reader.below(b"a/0000")) == []
    assert len(list(reader.below(b""))) == 6002


def test_what_is_not_taken_from_an_entry_is_passed_over() -> None:
    """Contents come in order, also when some are skipped or left half read."""
    items = [file(b"%d" % number, noise(5 << 20, number)) for number in range(4)]
    store = MemoryStore()
    reader = TreeReader(store, write(store, items).root)
    seen, paths = [], []
    for entry, data in reader.contents():
        paths.append(entry.path)
        if entry.path in (b"1", b"3"):
            seen.append(b"".join(data))
        elif entry.path == b"2":
            next(data)
    assert paths == [b"0", b"1", b"2", b"3"]
    assert seen == [items[1][1], items[3][1]]


BAD: dict[str, list[Item]] = {
    "the wrong order": [file(b"b"), file(b"a")],
    "twice": [file(b"a"), file(b"a")],
    "empty path": [file(b"")],
    "absolute": [file(b"/a")],
    "trailing slash": [folder(b"a/")],
    "empty component": [folder(b"a"), file(b"a//b")],
    "dot": [file(b".")],
    "dots": [folder(b"a"), file(b"a/../b")],
    "dots alone": [folder(b"..")],
    "NUL": [file(b"a\0b")],
    "too long": [file(b"a" * 65_536)],
    "no parent": [file(b"a/b")],
    "parent is a file": [file(b"a"), file(b"a/b")],
    "parent is a link": [link(b"a", b"/etc"), file(b"a/b")],
    "parent of another": [folder(b"a"), folder(b"a-b"), file(b"a-c/x")],
    "mode": [folder(b"a", mode=0o10000)],
    "time": [folder(b"a", mtime_ns=1 << 63)],
    "stat": [folder(b"a", stat=bytes(65))],
    "attribute": [folder(b"a", xattrs={b"security.x": b""})],
    "link without target": [link(b"a", b"")],
    "target with NUL": [link(b"a", b"a\0")],
    "file with target": [file(b"a", target=b"x")],
    "folder with size": [folder(b"a", size=1)],
    "less data": [file(b"a", b"12", size=3)],
    "more data": [file(b"a", b"1234", size=3)],
    "less data of a large file": [file(b"a", noise(SMALL + 5), size=SMALL + 6)],
    "more data of a large file": [file(b"a", noise(SMALL + 5), size=SMALL + 4)],
    "extents overlap": [file(b"a", b"1234", size=9, extents=((0, 2), (1, 2)))],
    "empty extent": [file(b"a", b"", size=9, extents=((0, 0),))],
    "extent beyond the end": [file(b"a", b"1234", size=9, extents=((6, 4),))],
    "later name of nothing": [file(b"b", hardlink=b"a")],
    "later name of a folder": [folder(b"a"), file(b"b", hardlink=b"a")],
    "later name of a later name": [file(b"a"), file(b"b", hardlink=b"a"), file(b"c", hardlink=b"b")],
    "later name with data": [file(b"a", b"1"), file(b"b", b"1", hardlink=b"a")],
    "later name that comes first": [file(b"a", hardlink=b"b"), file(b"b")],
}


@pytest.mark.parametrize("items", BAD.values(), ids=BAD.keys())
def test_what_is_no_tree_is_refused(items: list[Item]) -> None:
    """E-277: the list comes from inside a sandbox; nothing that a restore would follow elsewhere is taken."""
    store = MemoryStore()
    with pytest.raises(BadTree):
        write(store, items)


def test_a_later_name_that_comes_first_is_refused_at_once() -> None:
    """Not only when the tree is finished."""
    with TreeWriter(MemoryStore(), no_claim) as writer, pytest.raises(BadTree, match="sorts before"):
        add(writer, file(b"a", hardlink=b"b"))


def test_each_kind_has_its_method() -> None:
    """A folder is no file."""
    with TreeWriter(MemoryStore(), no_claim) as writer:
        for call in (writer.add_file, writer.add_link):
            with pytest.raises(BadTree):
                call(folder(b"a")[0])
        with pytest.raises(BadTree):
            writer.add_dir(file(b"a")[0])


@pytest.mark.parametrize(
    ("options", "limit", "maximum"), [({"max_entries": 2}, "files", 2), ({"max_bytes": 10}, "versionBytes", 10)]
)
def test_limits_are_checked_while_writing(options: dict[str, Any], limit: str, maximum: int) -> None:
    """E-129: no data is read for an entry that is too many."""
    store = MemoryStore()

    def never() -> Any:
        raise AssertionError("read")
        yield

    with TreeWriter(store, no_claim, **options) as writer:
        add(writer, file(b"a", bytes(5)))
        add(writer, file(b"b", bytes(5)))
        with pytest.raises(TreeTooLarge) as raised:
            writer.add_file(Entry(b"c", "file", 0o644, size=1), never())
    assert (raised.value.limit, raised.value.max) == (limit, maximum)


def test_a_file_that_changed_while_it_was_read_is_given_again() -> None:
    """E-277: the data's failure is the caller's; the second reading counts."""

    class Changed(Exception):
        pass

    def breaks(data: bytes) -> Any:
        yield data
        raise Changed

    store = MemoryStore()
    claimed: set[str] = set()
    first, second = noise(24 << 20, 1), noise(24 << 20, 2)
    with TreeWriter(store, lambda batch: claimed.update(name for name, _ in batch)) as writer:
        for size, path in ((100, b"a"), (24 << 20, b"b")):
            entry = Entry(path, "file", 0o644, size=size)
            with pytest.raises(Changed):
                writer.add_file(entry, breaks(first[:size]))
            writer.add_file(entry, [second[:size]])
        tree = writer.finish()
    assert [data for _, data in read(store, tree.root)] == [second[:100], second]
    assert list(verify(store, tree.root)) == []
    assert writer.unused == claimed - dict(blobs(store, tree.root)).keys() != set()


def test_a_writer_that_is_left_stores_no_root() -> None:
    """E-277: and nothing works afterwards."""
    store = MemoryStore()
    with TreeWriter(store, no_claim) as writer:
        add(writer, file(b"a", noise(20 << 20)))
    before = names(store)
    with pytest.raises(RuntimeError):
        writer.finish()
    assert names(store) == before


def test_equal_trees_have_equal_roots() -> None:
    """E-124: written twice, in pieces of other sizes, into other stores."""
    items = [folder(b"d"), *(file(b"d/%03d" % number, noise(5000, number), stat=b"s") for number in range(500))]
    items.append(file(b"e", noise(5 << 20), xattrs={b"user.b": b"1", b"user.a": b"2"}))
    trees = {write(MemoryStore(), items, piece=piece) for piece in (1 << 20, 777, 1 << 16)}
    assert len(trees) == 1


def test_a_touched_tree_has_the_same_content() -> None:
    """E-277: times, notes, attributes and later names make another root, not another content."""
    plain = [file(b"a", b"1"), file(b"b", b"1")]
    touched = [
        [file(b"a", b"1", mtime_ns=5), file(b"b", b"1")],
        [file(b"a", b"1", stat=b"5"), file(b"b", b"1")],
        [file(b"a", b"1", xattrs={b"user.a": b""}), file(b"b", b"1")],
        [file(b"a", b"1", extents=((0, 1),)), file(b"b", b"1")],
        [file(b"a", b"1"), file(b"b", hardlink=b"a")],
    ]
    store = MemoryStore()
    first, others = write(store, plain), [write(store, items) for items in touched]
    assert {tree.sha256 for tree in others} == {first.sha256}
    assert {tree.size for tree in others} == {first.size} == {2}
    assert len({tree.root for tree in [first, *others]}) == 6


def test_fields_of_an_entry_are_not_taken_from_the_caller() -> None:
    """The hash is the writer's own."""
    store = MemoryStore()
    entry, data = file(b"a", b"data")
    lie = replace(entry, sha256=bytes(32))
    assert write(store, [(lie, data)]) == write(store, [(entry, data)])


@given(trees())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_small_file_added_at_once_is_the_same_file(items: list[Item]) -> None:
    """Both ways to add a plain file store the same blobs and make the same root."""
    plain = [
        item for item in items
        if item[0].kind != "file" or not (item[0].xattrs or item[0].extents or item[0].hardlink or item[0].size > SMALL)
    ]  # fmt: skip
    one, other = MemoryStore(), MemoryStore()
    with TreeWriter(other, no_claim) as writer:
        for entry, data in plain:
            if entry.kind == "file" and entry.extents is None and entry.hardlink is None:
                writer.add_small_file(entry.path, data, mode=entry.mode, mtime_ns=entry.mtime_ns, stat=entry.stat)
            else:
                add(writer, (entry, data))
        tree = writer.finish()
    assert write(one, plain) == tree
    assert names(one) == names(other)


@pytest.mark.parametrize(
    ("path", "size", "fields"),
    [
        (b"../a", 1, {}),
        (b"a/b", 1, {}),
        (b"a", SMALL + 1, {}),
        (b"a", 1, {"mode": 0o10000}),
        (b"a", 1, {"mtime_ns": 1 << 63}),
        (b"a", 1, {"stat": b"x" * 65}),
    ],
)
def test_what_is_no_small_file_is_refused_and_the_writer_goes_on(
    path: bytes, size: int, fields: dict[str, Any]
) -> None:
    """A refused file leaves the writer as it was, and it goes on."""
    store = MemoryStore()
    with TreeWriter(store, no_claim) as writer:
        with pytest.raises(BadTree):
            writer.add_small_file(path, bytes(size), **{"mode": 0o644, "mtime_ns": 0, **fields})
        writer.add_small_file(b"a", b"x", mode=0o644, mtime_ns=0)
        with pytest.raises(BadTree):
            writer.add_small_file(b"a", b"x", mode=0o644, mtime_ns=0)
        assert writer.finish().files == 1
