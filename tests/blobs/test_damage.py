"""A blob that is not what its name promises is told by name, and nothing of it is returned."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import zstandard

from nylorun.blobs import (
    BlobDamaged,
    BlobMissing,
    Entry,
    MemoryStore,
    TreeReader,
    blob_id,
    blobs,
    read_blob,
    verify,
    write_blob,
)
from nylorun.blobs.blob import pack
from nylorun.blobs.content import sha256_text
from nylorun.blobs.index import Root, Segment, pack_root
from nylorun.blobs.records import pack as record
from tests.blobs.helpers import Item, file, folder, noise, read, rewrite, write

TEXT = b"some text that compresses well. " * 4000
ALTERED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda stored: b"",
    "codec only": lambda stored: stored[:1],
    "truncated": lambda stored: stored[:-1],
    "cut in half": lambda stored: stored[: len(stored) // 2],
    "longer": lambda stored: stored + b"x",
    "altered at the end": lambda stored: stored[:-1] + bytes([stored[-1] ^ 1]),
    "altered in the middle": lambda stored: stored[: len(stored) // 2] + b"\xa5" * 8 + stored[len(stored) // 2 + 8 :],
    "other codec": lambda stored: bytes([stored[0] ^ 1]) + stored[1:],
    "unknown codec": lambda stored: b"\x07" + stored[1:],
    "another's content": lambda stored: pack(b"another"),
    "claims gigabytes": lambda stored: b"\x01" + zstandard.ZstdCompressor().compress(b"")[:4] + b"\xe0" + b"\xff" * 20,
    "two frames": lambda stored: b"\x01" + zstandard.ZstdCompressor().compress(TEXT[:5]) * 2,
    "no content size": lambda stored: b"\x01" + zstandard.ZstdCompressor(write_content_size=False).compress(TEXT),
}


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED.keys())
@pytest.mark.parametrize("content", [TEXT, noise(100_000)], ids=["compressed", "plain"])
def test_an_altered_blob_is_refused(content: bytes, alter: Callable[[bytes], bytes]) -> None:
    """E-277: every way a blob can be wrong is ``BlobDamaged`` with its name."""
    store = MemoryStore()
    name = write_blob(store, content)
    store.put(name, alter(store.get(name)))
    with pytest.raises(BlobDamaged, match=name) as raised:
        read_blob(store, name, len(content))
    assert raised.value.key == name


def test_a_blob_of_another_size_is_refused() -> None:
    """The size that an index says is part of the promise."""
    store = MemoryStore()
    name = write_blob(store, TEXT)
    with pytest.raises(BlobDamaged, match="bytes and not 5"):
        read_blob(store, name, 5)


def test_a_small_blob_that_says_it_is_huge_is_refused() -> None:
    """A frame of 300 MiB of zeros is 10 kB: it is refused before any memory is taken for it."""
    store, size = MemoryStore(), 300 << 20
    compressor = zstandard.ZstdCompressor().compressobj(size=size)
    frame = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(300)) + compressor.flush()
    name = "0" * 64
    store.put(name, b"\x01" + frame)
    with pytest.raises(BlobDamaged, match=f"a content of {size} bytes"):
        read_blob(store, name)


def test_what_was_read_before_is_checked_again() -> None:
    """The memory of a reader does not answer for another size."""
    store = MemoryStore()
    reader = TreeReader(store, write(store, [file(b"a", TEXT)]).root)
    entry = reader.find(b"a")
    assert entry is not None
    blob, _, _, size = entry.refs[0]
    assert reader.blob(blob, size) == TEXT
    with pytest.raises(BlobDamaged, match="bytes and not"):
        reader.blob(blob, size + 1)


def test_what_does_not_compress_is_stored_as_it_is() -> None:
    """Both codecs are in use, and neither stores more than one byte beyond the content."""
    assert pack(noise(1000))[0] == 0
    assert len(pack(noise(1000))) == 1001
    assert pack(TEXT)[0] == 1
    large = 1 << 20
    assert pack(noise(large)) == b"\0" + noise(large)
    assert len(pack(bytes(large))) < 1000
    assert len(pack(noise(large // 2) + bytes(large // 2))) < 0.6 * large
    assert pack(b"") == b"\x00"


def test_names_of_blobs_are_blake3() -> None:
    """A literal: the empty input of BLAKE3."""
    assert blob_id(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


ITEMS: list[Item] = [folder(b"d"), *(file(b"d/%03d" % number, noise(2000, number)) for number in range(600))]
ITEMS += [file(b"e", noise(5 << 20)), file(b"f", hardlink=b"d/007")]


@pytest.mark.parametrize("way", ["missing", "truncated", "altered"])
def test_damage_anywhere_is_told_and_heals(way: str) -> None:
    """E-277: every single blob of a tree, lost or changed: reading fails with its name, and so does ``verify``."""
    store = MemoryStore()
    tree = write(store, ITEMS)
    everything = list(blobs(store, tree.root))
    assert len(everything) > 7
    for name, _ in everything:
        good = store.get(name)
        if way == "missing":
            store.delete(name)
        else:
            store.put(name, good[:-1] if way == "truncated" else good[:-1] + bytes([good[-1] ^ 255]))
        with pytest.raises(BlobMissing if way == "missing" else BlobDamaged, match=name):
            read(store, tree.root)
        problems = list(verify(store, tree.root))
        assert [problem.blob for problem in problems] == [name]
        assert name in problems[0].reason
        store.put(name, good)
    assert list(verify(store, tree.root)) == []


def test_files_that_are_whole_can_be_read_beside_damage() -> None:
    """One lost blob is not the loss of a disk."""
    store = MemoryStore()
    tree = write(store, ITEMS)
    reader = TreeReader(store, tree.root)
    large, small = reader.find(b"e"), reader.find(b"d/001")
    assert large is not None
    assert small is not None
    store.delete(large.refs[1].blob)
    assert b"".join(reader.read(small)) == ITEMS[2][1]
    assert b"".join(reader.read(large, 0, 100)) == ITEMS[-2][1][:100]
    with pytest.raises(BlobMissing):
        b"".join(reader.read(large))


def test_a_damaged_index_is_not_kept() -> None:
    """E-124: no new version is built on records that cannot be read."""
    store = MemoryStore()
    tree = write(store, ITEMS)
    segment = TreeReader(store, tree.root).segments()[0].name.hex()
    store.put(segment, store.get(segment)[:-3])
    with pytest.raises(BlobDamaged, match=segment):
        rewrite(store, tree.root)


def tree_of(store: MemoryStore, raws: list[bytes], **totals: object) -> str:
    """A root over any records, right in its form."""
    content = b"nylS\x01" + b"".join(raws)
    name = write_blob(store, content)
    fields: dict[str, object] = {"files": len(raws), "size": 0, "sha256": bytes(32)} | totals
    return write_blob(store, pack_root(Root(segments=(Segment(bytes.fromhex(name), len(content), 1, b""),), **fields)))  # type: ignore[arg-type] # a test's short way


def test_verify_looks_beyond_hashes() -> None:
    """E-277: blobs that are whole and yet say something wrong: order, totals, content, later names, refs."""
    store = MemoryStore()
    empty = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    a, b = Entry(b"a", "file", 0o644), Entry(b"b", "file", 0o644)
    cases = {
        "order": [record(b, empty), record(a, empty)],
        "no path": [record(Entry(b"../a", "file", 0o644), empty)],
        "totals": [record(a, empty)],
        "SHA-256": [record(a, bytes(32))],
        "refs": [record(Entry(b"a", "file", 0o644, size=5), empty)],
        "later name": [record(a, empty), record(Entry(b"b", "file", 0o644, hardlink=b"A"), empty)],
        "parse": [record(a, empty)[:4] + b"\x09" + record(a, empty)[5:]],
    }
    for reason, raws in cases.items():
        reasons = [problem.reason for problem in verify(store, tree_of(store, raws))]
        assert any(reason in text for text in reasons), (reason, reasons)
    good = write(store, [(a, b"")])
    root = tree_of(store, [record(a, empty)], sha256=bytes.fromhex(good.sha256.removeprefix("sha256:")))
    assert list(verify(store, root)) == []
    assert sha256_text(bytes(32)) == "sha256:" + "00" * 32


def test_verify_says_where_it_could_not_begin() -> None:
    """A missing root, and one that is something else."""
    store = MemoryStore()
    assert [problem.blob for problem in verify(store, "0" * 64)] == ["0" * 64]
    other = write_blob(store, TEXT)
    assert [(problem.blob, problem.path) for problem in verify(store, other)] == [(other, None)]
