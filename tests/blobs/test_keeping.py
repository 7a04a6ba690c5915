"""A second version: what is unchanged is kept unread, what changed stores little, nothing is dragged along."""

from __future__ import annotations

import random

import pytest

from nylorun.blobs import BlobMissing, MemoryStore, Store, TreeReader, TreeWriter, blobs, verify
from nylorun.blobs.cutting import CHUNK_MAX
from nylorun.blobs.repack import MANY, TINY
from tests.blobs.helpers import (
    Item,
    WatchedStore,
    add,
    file,
    folder,
    names,
    no_claim,
    noise,
    read,
    rewrite,
    stored,
    write,
)


def many(count: int, size: int = 1000) -> list[Item]:
    """Files that do not compress."""
    return [
        folder(b"d"),
        *(file(b"d/%06d" % number, noise(size, number), stat=b"%d" % number) for number in range(count)),
    ]


def test_a_disk_where_nothing_changed_is_unchanged() -> None:
    """E-124: the same root; no blob is claimed, asked for, stored or read but root and index."""
    store = WatchedStore()
    tree = write(store, many(3000))
    store.calls.clear()
    claimed: list[object] = []
    again = rewrite(store, tree.root, claim=claimed.append)
    assert again == type(tree)(tree.root, tree.sha256, tree.size, tree.files, unchanged=True)
    index = {name for name, _ in TreeReader(store, tree.root).own_blobs()}
    assert {call for call, _ in store.calls} == {"get"}
    assert store.keys("get") == index
    assert claimed == []


def test_an_empty_disk_can_be_unchanged() -> None:
    """E-124: nothing kept of nothing."""
    store = MemoryStore()
    tree = write(store, [])
    assert rewrite(store, tree.root).unchanged
    assert not rewrite(store, tree.root, [file(b"a")]).unchanged


@pytest.mark.parametrize("change", ["one more", "one less", "another", "the same again"])
def test_every_change_is_seen(change: str) -> None:
    """E-124: a tree is unchanged only when all was kept; the content hash is that of a full writing."""
    store, items = MemoryStore(), many(50)
    tree = write(store, items)
    changes = {
        "one more": ([file(b"d/x", b"x")], []),
        "one less": ([], [b"d/000007"]),
        "another": ([file(b"d/000007", b"x")], []),
        "the same again": ([items[8]], []),
    }
    news, gone = changes[change]
    after = rewrite(store, tree.root, news, without=gone)
    now = {entry.path: (entry, data) for entry, data in items if entry.path not in gone}
    now |= {item[0].path: item for item in news}
    wanted = [now[path] for path in sorted(now)]
    assert not after.unchanged
    assert read(store, after.root) == wanted
    assert (after.sha256, after.size, after.files) == (
        (full := write(MemoryStore(), wanted)).sha256, full.size, full.files,
    )  # fmt: skip
    assert (after.sha256 == tree.sha256) == (change == "the same again")
    assert list(verify(store, after.root)) == []


def test_one_changed_file_stores_little() -> None:
    """E-129: a block for it, a segment of the index, a root. All that the new tree names is claimed."""
    store = MemoryStore()
    tree = write(store, many(20_000))
    before = stored(store)
    claimed: set[tuple[str, int]] = set()
    after = rewrite(store, tree.root, [file(b"d/010000", b"new")], claim=claimed.update)
    assert stored(store) - before < 300_000
    assert len(names(store) - dict(blobs(store, tree.root)).keys()) == 3
    assert claimed == set(blobs(store, after.root))


def test_one_changed_byte_of_a_large_file_stores_little() -> None:
    """E-129: in the middle, put in, or at an end: one or two chunks of 64 MiB."""
    content = noise(64 << 20)
    store = MemoryStore()
    write(store, [file(b"f", content)])
    before = stored(store)
    middle = len(content) // 2
    for changed in (
        content[:middle] + b"X" + content[middle + 1 :],
        content[:middle] + b"XX" + content[middle:],
        content + b"X",
    ):
        write(store, [file(b"f", changed)])
        assert stored(store) - before < 5 << 20
        before = stored(store)


def test_a_changed_small_file_lets_its_old_block_go() -> None:
    """E-129: however often files change, a tree names at most twice what it holds (and a few tiny blocks)."""
    store = MemoryStore()
    items = {item[0].path: item for item in many(4000)}
    tree = write(store, [items[path] for path in sorted(items)])
    rnd = random.Random(5)
    for turn in range(40):
        news = [file(path, noise(1000, turn * 10_000 + n)) for n, path in enumerate(rnd.sample(sorted(items)[1:], 200))]
        items |= {item[0].path: item for item in news}
        tree = rewrite(store, tree.root, news)
    assert read(store, tree.root) == [items[path] for path in sorted(items)]
    index = dict(TreeReader(store, tree.root).own_blobs())
    content = {name: size for name, size in blobs(store, tree.root) if name not in index}
    assert sum(content.values()) < 2 * tree.size + MANY * TINY
    assert list(verify(store, tree.root)) == []


def test_blocks_of_one_file_are_put_together() -> None:
    """E-129: a thousand copies with one change each do not make a thousand blocks."""
    store = MemoryStore()
    tree = write(store, many(500, 100))
    most = 0
    for turn in range(150):
        tree = rewrite(store, tree.root, [file(b"d/%06d" % turn, b"turn %d" % turn)])
        most = max(most, len(list(blobs(store, tree.root))))
    assert MANY < most < MANY + 5
    assert list(verify(store, tree.root)) == []
    assert [data for _, data in read(store, tree.root)][1:151] == [b"turn %d" % turn for turn in range(150)]


def test_a_large_file_is_no_block() -> None:
    """E-129: its last chunk may be tiny, and is not packed with others."""
    store = MemoryStore()
    items = [file(b"%03d" % number, bytes(CHUNK_MAX) + noise(9000, number)) for number in range(MANY + 3)]
    tree = write(store, items)
    tails = {entry.refs[-1] for entry in TreeReader(store, tree.root).entries() if len(entry.refs) > 1}
    assert len({ref for ref in tails if ref.size < TINY}) > MANY
    after = rewrite(store, tree.root, [file(b"zzz", b"new")])
    assert read(store, after.root)[:-1] == items
    assert dict(blobs(store, after.root)).keys() <= names(store)
    claimed: set[tuple[str, int]] = set()
    again = rewrite(store, after.root, [file(b"zzz", b"newer")], claim=claimed.update)
    assert claimed == set(blobs(store, again.root))


def test_a_damaged_previous_tree_is_healed_by_a_full_copy() -> None:
    """E-277: re-packing says what is lost; without ``previous`` everything is stored again."""
    store, items = MemoryStore(), many(1000)
    tree = write(store, items)
    index = dict(TreeReader(store, tree.root).own_blobs())
    for name in names(store) - index.keys():
        store.delete(name)
    kept = items[:200]
    with pytest.raises(BlobMissing):
        rewrite(store, tree.root, [], without=[entry.path for entry, _ in items[200:]])
    after = write(store, kept)
    assert list(verify(store, after.root)) == []


@pytest.mark.parametrize("heal", [False, True])
def test_damaged_blobs_are_stored_again_when_they_are_to_be_healed(heal: bool) -> None:
    """E-277: a stored name is taken for its content unless the copy is to look; then the old tree is whole, too."""
    store = WatchedStore()
    items = [*many(1000), file(b"e", noise(5 << 20))]
    tree = write(store, items)
    damaged = sorted(names(store))[::2]
    for name in damaged:
        store.put(name, store.get(name)[:-1])
    store.calls.clear()
    assert write(store, items, heal=heal) == tree
    assert store.keys("put") == (set(damaged) if heal else set())
    assert (list(verify(store, tree.root)) == []) == heal


def test_kept_later_names_follow_their_first_name() -> None:
    """E-277: kept beside a first name that was written anew, and refused when the first name is gone."""
    store = MemoryStore()
    items = [file(b"a", b"one"), file(b"b", hardlink=b"a"), file(b"c", b"other")]
    tree = write(store, items)
    after = rewrite(store, tree.root, [file(b"a", b"changed")])
    reader = TreeReader(store, after.root)
    first, later = reader.find(b"a"), reader.find(b"b")
    assert first is not None
    assert later is not None
    assert (later.sha256, later.size) == (first.sha256, 7)
    assert b"".join(reader.read(later)) == b"changed"
    assert after.sha256 == write(MemoryStore(), [file(b"a", b"changed"), file(b"b", b"changed"), items[2]]).sha256
    with pytest.raises(Exception, match="later name"):
        rewrite(store, tree.root, without=[b"a"])


def test_kept_entries_obey_order_and_limits() -> None:
    """E-129: like new ones."""
    store: Store = MemoryStore()
    previous = TreeReader(store, write(store, many(5)).root)
    raws = [raw for _, _, raw in previous.raw_entries()]
    with TreeWriter(store, no_claim, previous, max_entries=3) as writer:
        writer.keep(raws[0])
        writer.keep(raws[2])
        with pytest.raises(Exception, match="order"):
            writer.keep(raws[1])
        add(writer, file(b"d/000003", b""))
        with pytest.raises(Exception, match="files"):
            writer.keep(raws[5])
    with TreeWriter(store, no_claim, previous) as writer, pytest.raises(Exception, match="no folder"):
        writer.keep(raws[3])
