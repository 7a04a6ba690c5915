"""What every store promises: one suite for memory, a folder and S3."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from nylorun.blobs import BlobMissing, Store, TreeReader, read_blob, verify, write_blob
from tests.blobs.helpers import file, folder, names, noise, read, rewrite, write

KEY, OTHER = "a" * 64, "b" * 64


def test_what_is_put_is_there(store: Store) -> None:
    """E-129: bytes come back by their key, any bytes."""
    for data in (b"", b"\x00\xff" * 1000, noise(3 << 20)):
        store.put(KEY, data)
        assert store.get(KEY) == data
        assert store.has(KEY)


def test_what_was_not_put_is_missing(store: Store) -> None:
    """The store answers, so nothing but "missing" is said."""
    assert not store.has(KEY)
    with pytest.raises(BlobMissing) as raised:
        store.get(KEY)
    assert raised.value.key == KEY
    assert list(store.list()) == []


def test_deleting_is_repeatable(store: Store) -> None:
    """E-288: a collector that was killed deletes again."""
    store.put(KEY, b"one")
    store.put(OTHER, b"two")
    store.delete(KEY)
    store.delete(KEY)
    assert not store.has(KEY)
    assert names(store) == {OTHER}


def test_the_list_tells_key_size_and_age(store: Store) -> None:
    """E-288: what a collector needs."""
    sizes = {f"{number:064x}": number for number in range(20)}
    for key, size in sizes.items():
        store.put(key, bytes(size))
    found = list(store.list())
    assert {blob.key: blob.size for blob in found} == sizes
    assert all(-5 < blob.age_seconds < 300 for blob in found)


def test_putting_again_is_harmless(store: Store) -> None:
    """E-129: also when several do it at once."""
    data = noise(1 << 20)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: store.put(KEY, data), range(16)))
    assert store.get(KEY) == data
    assert [blob.key for blob in store.list()] == [KEY]


@pytest.mark.parametrize("key", ["", "a" * 63, "a" * 65, "A" * 64, "../" + "a" * 61, "g" * 64, "a" * 63 + "/"])
def test_other_keys_are_refused(store: Store, key: str) -> None:
    """No key leaves the store's place."""
    for call in (store.get, store.has, store.delete, lambda key: store.put(key, b"")):
        with pytest.raises(ValueError, match="64 lower-case hex digits"):
            call(key)


def test_a_usable_store_passes_its_check(store: Store) -> None:
    """And the check leaves nothing behind."""
    store.check()
    assert list(store.list()) == []


def test_a_blob_is_stored_once(store: Store) -> None:
    """E-129: equal contents have one name."""
    name = write_blob(store, b"content" * 1000)
    assert write_blob(store, b"content" * 1000) == name
    assert read_blob(store, name, 7000) == b"content" * 1000
    assert len(names(store)) == 1


def test_a_tree_lives_in_every_store(store: Store) -> None:
    """E-277: written, kept, changed, read and checked."""
    items = [folder(b"d"), *(file(b"d/%03d" % number, b"text %d" % number) for number in range(300))]
    items.append(file(b"e", noise(5 << 20)))
    tree = write(store, items)
    assert read(store, tree.root) == items
    assert rewrite(store, tree.root).unchanged
    changed = rewrite(store, tree.root, [file(b"d/100", b"other")])
    assert changed.root != tree.root
    assert TreeReader(store, changed.root).files == 302
    assert list(verify(store, changed.root)) == []
