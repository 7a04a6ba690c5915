"""Records, segments and roots as bytes: the written form, and that nothing else is taken for one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nylorun.blobs import BlobDamaged, Entry, MemoryStore, Ref, TreeReader, unpack, write_blob
from nylorun.blobs.index import ROOT, SEGMENT, Root, Segment, pack_root, records, segment_ends, unpack_root
from nylorun.blobs.records import REF, pack

REFS = st.lists(
    st.builds(
        Ref, st.binary(min_size=32, max_size=32).map(bytes.hex), *[st.integers(0, (1 << 32) - 1) for _ in range(3)]
    ),
    max_size=3,
)
FILES = st.builds(
    Entry,
    path=st.binary(min_size=1, max_size=40),
    kind=st.just("file"),
    mode=st.integers(0, 0o7777),
    size=st.integers(0, (1 << 63) - 1),
    sha256=st.binary(min_size=32, max_size=32),
    mtime_ns=st.integers(-(1 << 63), (1 << 63) - 1),
    stat=st.binary(max_size=64),
    hardlink=st.none() | st.binary(min_size=1, max_size=40),
    xattrs=st.dictionaries(st.binary(min_size=1, max_size=20), st.binary(max_size=70), max_size=3),
    extents=st.none() | st.lists(st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62)), max_size=3).map(tuple),
    refs=REFS.map(tuple),
)


def packed(entry: Entry) -> bytes:
    """The record of an entry with the refs it has."""
    refs = b"".join(REF.pack(bytes.fromhex(ref.blob), *ref[1:]) for ref in entry.refs)
    return pack(entry, entry.sha256, refs)


@given(FILES)
def test_a_record_says_what_its_entry_says(entry: Entry) -> None:
    """E-277: every field, at its borders."""
    assert unpack(packed(entry)) == entry


def test_a_record_is_these_bytes() -> None:
    """What is stored stays readable: a literal of each kind."""
    entry = Entry(b"a/b", "file", 0o644, 5, b"\x11" * 32, mtime_ns=-2, stat=b"st", refs=(Ref("22" * 32, 1, 5, 9),))
    assert packed(entry).hex() == (
        "71000000" "01" "00" "a401" "0500000000000000" "feffffffffffffff" "0300" "02" "00" "612f62" "7374"
        + "11" * 32 + "01000000" + "22" * 32 + "01000000" "05000000" "09000000"
    )  # fmt: skip
    link = Entry(b"l", "link", 0o777, target=b"to", xattrs={b"user.k": b"v"})
    assert pack(link).hex() == (
        "32000000" "03" "04" "ff01" "0000000000000000" "0000000000000000" "0100" "00" "00" "6c" "0200" "746f"
        "01000000" "0600" "01000000" "757365722e6b" "76"
    )  # fmt: skip


@given(FILES, st.data())
def test_a_cut_or_altered_length_is_no_record(entry: Entry, draw: st.DataObject) -> None:
    """A record that does not fill its length is refused, never half understood."""
    raw = packed(entry)
    for other in (raw[: draw.draw(st.integers(0, len(raw) - 1))], raw + b"\0"):
        with pytest.raises(ValueError, match="does not parse"):
            unpack(other)


def test_an_unknown_kind_is_refused() -> None:
    """A later format is not guessed at."""
    raw = bytearray(packed(Entry(b"a", "dir", 0o755)))
    raw[4] = 9
    with pytest.raises(ValueError, match="does not parse"):
        unpack(bytes(raw))


ROOTS = Root(3, 7, b"\x01" * 32, (Segment(b"\x02" * 32, 100, 2, b"a"), Segment(b"\x03" * 32, 50, 1, b"b/c")))


def test_a_root_says_what_it_was_given() -> None:
    """And nothing that is cut or longer is one."""
    content = pack_root(ROOTS)
    assert unpack_root(content) == ROOTS
    for other in [content[:cut] for cut in range(len(content))] + [content + b"x", b"nylR\x02" + content[5:]]:
        with pytest.raises(ValueError, match="root"):
            unpack_root(other)


@pytest.mark.parametrize("content", [b"", b"nylS\x02", SEGMENT + b"abc", SEGMENT + bytes(40), SEGMENT + b"\xff" * 40])
def test_what_is_no_segment_is_refused(content: bytes) -> None:
    """No endless loop on a length of zero, no reading beyond the end."""
    with pytest.raises(ValueError, match=r"segment|record"):
        list(records(content))


def test_a_blob_that_is_no_index_is_damage() -> None:
    """A root that names something else is told by name."""
    store = MemoryStore()
    other = write_blob(store, b"something else")
    with pytest.raises(BlobDamaged, match=other):
        TreeReader(store, other)
    root = write_blob(store, pack_root(Root(1, 0, bytes(32), (Segment(bytes.fromhex(other), 14, 1, b"a"),))))
    with pytest.raises(BlobDamaged, match=other):
        list(TreeReader(store, root).entries())
    wrong = write_blob(store, SEGMENT + packed(Entry(b"a", "dir", 0o755)).replace(b"\x02", b"\x07", 1))
    size = len(SEGMENT) + len(packed(Entry(b"a", "dir", 0o755)))
    root = write_blob(
        store, ROOT + pack_root(Root(1, 0, bytes(32), (Segment(bytes.fromhex(wrong), size, 1, b"a"),)))[5:]
    )
    with pytest.raises(BlobDamaged, match="does not parse"):
        list(TreeReader(store, root).entries())


def test_segments_end_where_their_content_says() -> None:
    """E-129: cuts depend on the records, come about every 128 KiB, and realign after a change."""
    rnd = random.Random(1)
    raws = [packed(Entry(b"%06d" % number, "file", 0o644, sha256=rnd.randbytes(32))) for number in range(50_000)]

    def ends(raws: list[bytes]) -> set[bytes]:
        found, size = set(), 0
        for raw in raws:
            size += len(raw)
            if segment_ends(raw, size):
                found.add(raw)
                size = 0
        return found

    whole, later = ends(raws), ends(raws[777:])
    mean = sum(map(len, raws)) / len(whole)
    assert 80_000 < mean < 200_000
    assert len(whole - later) < 6
