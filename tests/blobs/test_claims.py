"""A blob is claimed before it is relied on, and a failure stops everything."""

from __future__ import annotations

import threading

import pytest

from nylorun.blobs import MemoryStore, StoreUnavailable, TreeReader, TreeWriter, blobs
from nylorun.blobs.sink import BATCH_BLOBS, BATCH_BYTES
from tests.blobs.helpers import Item, WatchedStore, add, file, names, no_claim, noise, rewrite, write

MIB = 1 << 20


def large(count: int) -> list[Item]:
    """Some files that are cut, and some that are packed."""
    items = [file(b"%03d" % number, noise(3 * MIB, number)) for number in range(count)]
    return items + [file(b"s%03d" % number, noise(9000, number)) for number in range(300)]


class Refused(Exception):
    """What a claim may raise."""


def test_every_blob_is_claimed_before_the_store_hears_of_it() -> None:
    """E-288: contents, index and root, with their sizes, each once, in the caller's thread."""
    store, claims = WatchedStore(), []

    def claim(batch: list[tuple[str, int]]) -> None:
        claims.append((threading.get_ident(), batch, store.keys("has") | store.keys("put")))

    tree = write(store, large(20), claim)
    claimed: set[str] = set()
    for thread, batch, heard in claims:
        assert thread == threading.get_ident()
        claimed |= {name for name, _ in batch}
        assert heard <= claimed - {name for name, _ in batch}
    pairs = [pair for _, batch, _ in claims for pair in batch]
    assert sorted(pairs) == sorted(blobs(store, tree.root))
    assert store.keys("has") == store.keys("put") == claimed == names(store)


def test_what_is_kept_is_claimed_and_not_asked_for() -> None:
    """E-288: the next version holds its contents itself; the previous one may be deleted at any time."""
    store = WatchedStore()
    first = write(store, large(5))
    store.calls.clear()
    claimed: list[tuple[str, int]] = []
    second = rewrite(store, first.root, [file(b"002", b"small now")], claim=claimed.extend)
    assert sorted(claimed) == sorted(blobs(store, second.root))
    assert store.keys("has") & dict(blobs(store, first.root)).keys() == set()
    assert store.keys("put") == dict(blobs(store, second.root)).keys() - dict(blobs(store, first.root)).keys()


def test_what_is_stored_already_is_claimed_and_not_put() -> None:
    """E-129: a full copy of the same disk stores nothing."""
    store = WatchedStore()
    first = write(store, large(5))
    store.calls.clear()
    claimed: list[tuple[str, int]] = []
    assert write(store, large(5), claimed.extend) == first
    assert sorted(claimed) == sorted(blobs(store, first.root))
    assert store.keys("put") == set()


def test_equal_contents_are_claimed_and_stored_once() -> None:
    """E-129: each distinct content counts once, however often it is in a tree and in whichever batch."""
    store = WatchedStore()
    claimed: list[tuple[str, int]] = []
    items = [file(b"%d" % number, noise(20 * MIB)) for number in range(3)]
    tree = write(store, items, claimed.extend)
    assert len(claimed) == len(set(claimed)) == len(list(blobs(store, tree.root)))
    assert len([key for call, key in store.calls if call == "put"]) == len(claimed)


def test_claims_come_in_batches() -> None:
    """E-288: of bounded bytes and number, so a claim is a short commit and memory stays flat."""
    batches: list[list[tuple[str, int]]] = []
    write(MemoryStore(), large(20), batches.append)
    assert 4 < len(batches) <= 24
    for batch in batches:
        assert len(batch) <= BATCH_BLOBS
        assert sum(size for _, size in batch[:-1]) < BATCH_BYTES


@pytest.mark.parametrize("refused", range(6))
def test_a_refused_claim_stops_everything(refused: int) -> None:
    """E-288: what the claim raises comes out, and nothing of that batch or after it is asked for or stored."""
    store = WatchedStore()
    claimed: set[str] = set()
    batches: list[list[tuple[str, int]]] = []

    def claim(batch: list[tuple[str, int]]) -> None:
        batches.append(batch)
        if len(batches) > refused:
            raise Refused
        claimed.update(name for name, _ in batch)

    with TreeWriter(store, claim) as writer:
        with pytest.raises(Refused):
            for item in large(30):
                add(writer, item)
            writer.finish()
        heard = store.keys("has") | store.keys("put")
        assert len(batches) == refused + 1
        assert heard <= claimed
        for call in (writer.finish, lambda: add(writer, file(b"z", noise(MIB)))):
            with pytest.raises(RuntimeError):
                call()
    assert store.keys("has") | store.keys("put") == heard
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("blobs-")]


class FailingStore(WatchedStore):
    """Fails at the given put, and at every one after it."""

    def __init__(self, failing: int) -> None:
        super().__init__()
        self.left = failing

    def put(self, key: str, data: bytes) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailable("the disk is full")
        super().put(key, data)


@pytest.mark.parametrize("failing", [0, 5, 20, 45])
def test_a_failing_store_stops_everything(failing: int) -> None:
    """E-227: the copy fails as infrastructure, and leaves no root that names what is not there."""
    store, tree = FailingStore(failing), write(MemoryStore(), large(12))
    with TreeWriter(store, no_claim) as writer, pytest.raises(StoreUnavailable, match="full"):
        for item in large(12):
            add(writer, item)
        writer.finish()
    assert tree.root not in names(store)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("blobs-")]


def test_the_root_is_stored_last() -> None:
    """E-277: who has a root has all of it."""
    store = WatchedStore()
    tree = write(store, large(3))
    puts = [key for call, key in store.calls if call == "put"]
    assert puts[-1] == tree.root
    assert puts.count(tree.root) == 1


def test_the_index_of_the_previous_tree_is_not_asked_for() -> None:
    """E-129: over S3 each question costs a round trip."""
    store = WatchedStore()
    items = [file(b"%06d" % number, b"%d" % number) for number in range(5000)]
    first = write(store, items)
    store.calls.clear()
    rewrite(store, first.root, [file(b"000000", b"other")])
    assert len(store.keys("has")) == 3
    assert len(TreeReader(store, first.root).segments()) > 3
