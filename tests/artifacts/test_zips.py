"""Archives that nobody vouches for: every hostile form is refused before a byte of it is unpacked."""

from __future__ import annotations

import io
import stat
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.zips import Archive, BadArchive, TooManyEntries, zip_stream
from tests.artifacts.support import unzipped, zipped

LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def opened(data: bytes, most: int = 100) -> Archive:
    return Archive(io.BytesIO(data), most=most)


def contents(data: bytes) -> dict[str, bytes | None]:
    """Everything in an archive; ``None`` for a folder."""
    archive = opened(data)
    return {
        member.path: None if member.folder else b"".join(archive.read(member)) for member in archive.members
    }  # fmt: skip


def refused(data: bytes) -> str:
    """Why an archive is refused, when it is opened or read."""
    with pytest.raises(BadArchive) as caught:
        contents(data)
    return str(caught.value)


def named(name: bytes, data: bytes = b"x", **fields: int) -> bytes:
    """An archive of one entry, its name as it stands; ``fields`` of its directory entry are set afterwards."""
    plain = zipped({"n" * len(name): data}, compression=zipfile.ZIP_STORED).replace(b"n" * len(name), name)
    return with_field(plain, **fields)


FIELDS = {"made_by": (4, "H"), "flags": (8, "H"), "method": (10, "H"), "crc": (16, "L"), "packed": (20, "L"),
          "size": (24, "L"), "disk": (34, "H"), "attributes": (38, "L"), "at": (42, "L")}  # fmt: skip


def with_field(data: bytes, entry: int = 0, **fields: int) -> bytes:
    """The archive with other values in its directory entry."""
    at = -1
    for _ in range(entry + 1):
        at = data.index(CENTRAL, at + 1)
    changed = bytearray(data)
    for name, value in fields.items():
        offset, form = FIELDS[name]
        struct.pack_into(f"<{form}", changed, at + offset, value)
    return bytes(changed)


def with_local(data: bytes, offset: int, form: str, value: int) -> bytes:
    """The archive with another value in its first local header."""
    changed = bytearray(data)
    struct.pack_into(f"<{form}", changed, data.index(LOCAL) + offset, value)
    return bytes(changed)


def unix(mode: int) -> int:
    return mode << 16


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_others_write_is_read(compression: int) -> None:
    """E-198: files, folders and those above them, in the order of their bytes."""
    files = {"b/c": b"1" * 100_000, "a": b"", "B": b"2", "d/": b"", "ä": b"3", "b-": b"4"}
    data = zipped(files, compression=compression)
    assert contents(data) == {"B": b"2", "a": b"", "b": None, "b-": b"4", "b/c": b"1" * 100_000, "d": None, "ä": b"3"}
    assert list(contents(data)) == sorted(contents(data), key=str.encode)
    assert opened(data).size == 100_003


def test_streams_with_data_descriptors_and_zip64_are_read() -> None:
    """E-198: what a writer could not know before it wrote."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = b""

        def writable(self) -> bool:
            return True

        def write(self, data: object, /) -> int:
            self.data += bytes(data)  # type: ignore[call-overload]
            return len(bytes(data))  # type: ignore[call-overload]

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a", "w", force_zip64=True) as file:
        file.write(b"hello" * 1000)
    assert contents(pipe.data) == {"a": b"hello" * 1000}


def zip64(data: bytes) -> bytes:
    """The same archive with a ZIP64 end record, and nothing but its marks in the plain one."""
    end = data.rindex(END)
    _, _, _, here, entries, size, start, _ = struct.unpack("<4s4H2LH", data[end:])
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, here, entries, size, start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    plain = struct.pack("<4s4H2LH", END, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:end] + record + locator + plain


def test_the_large_form_is_read_and_checked() -> None:
    """E-198: ZIP64 records; two that differ are refused, and so is one that points elsewhere."""
    data = zip64(zipped({"a": b"1"}))
    assert contents(data) == {"a": b"1"}
    lied = bytearray(data)
    struct.pack_into("<H", lied, len(data) - 22 + 10, 7)
    assert "two end records" in refused(bytes(lied))
    elsewhere = bytearray(data)
    struct.pack_into("<Q", elsewhere, len(data) - 42 + 8, 1)
    assert "broken end record" in refused(bytes(elsewhere))


def test_a_size_in_the_large_form_is_taken() -> None:
    """E-198: an entry whose sizes stand in its extra field."""
    data = zipped({"a": b"12345"}, compression=zipfile.ZIP_STORED)
    at, end = data.index(CENTRAL), data.rindex(END)
    extra = struct.pack("<2H2Q", 1, 16, 5, 5)
    entry = bytearray(data[at:end])
    struct.pack_into("<2L", entry, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", entry, 30, len(extra))
    close = bytearray(data[end:])
    struct.pack_into("<L", close, 12, len(entry) + len(extra))
    assert contents(data[:at] + bytes(entry) + extra + bytes(close)) == {"a": b"12345"}
    assert "without its size" in refused(with_field(data, size=0xFFFFFFFF))


@pytest.mark.parametrize(
    "name",
    [b"/etc/passwd", b"../x", b"a/../../x", b"a/./b", b"./a", b"a//b", b"//", b"/", b"a\\b", b"..\\x", b"C:\\x",
     b"a\nb", b"a\0b", b"\x7f", b"..", b".", b"\xc2\x85", b"x" * 256, b"x/" * 2049],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_refused(name: bytes) -> None:
    """E-198: absolute, dot names, backslashes, control characters, empty and overlong parts."""
    refused(named(name, b"" if name.endswith(b"/") else b"x"))


@pytest.mark.parametrize("name", [b"\xff", b"a/\xe4", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_a_name_that_is_not_utf8_is_refused(name: bytes) -> None:
    """E-198: it would be another name after every conversion."""
    assert "UTF-8" in refused(named(name))
    assert "UTF-8" in refused(named(name, flags=0x800))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, 0o110000])
def test_links_and_devices_are_refused(kind: int) -> None:
    """E-198: files and folders only, whichever system it says it was made on."""
    for made_by in (0x0314, 0x0014):
        fault = refused(with_field(named(b"a"), attributes=unix(kind | 0o777), made_by=made_by))
        assert "neither a file nor a folder" in fault


def test_a_kind_that_its_name_denies_is_refused() -> None:
    """E-198: a folder by one and a file by the other."""
    assert "not both" in refused(with_field(named(b"a"), attributes=unix(stat.S_IFDIR)))
    assert "not both" in refused(with_field(named(b"a/", b""), attributes=unix(stat.S_IFREG)))
    assert "not both" in refused(with_field(named(b"a"), attributes=0x10))
    assert "bytes of its own" in refused(with_field(named(b"a/", b"x"), attributes=0x10))


@pytest.mark.parametrize("flag", [0x0001, 0x0040, 0x2000])
def test_encrypted_entries_are_refused(flag: int) -> None:
    """E-198: in the directory or in the entry alone."""
    data = named(b"a")
    assert "encrypted" in refused(with_field(data, flags=flag))
    assert "otherwise" in refused(with_local(data, 6, "H", flag))


@pytest.mark.parametrize("method", [1, 9, 12, 14, 93, 99])
def test_other_compressions_are_refused(method: int) -> None:
    """E-198: stored and deflate only."""
    assert "another way" in refused(with_local(with_field(named(b"a"), method=method), 8, "H", method))


@pytest.mark.parametrize(
    "files",
    [["a", "a"], ["a/", "a/"], ["a", "a/"], ["a/", "a"], ["a/b", "a"], ["a", "a/b"], ["a", "a/b/c"], ["a/b/c", "a/b"]],
)
def test_two_entries_for_one_path_are_refused(files: list[str]) -> None:
    """E-198: twice, or as a file and as a folder."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive, warnings.catch_warnings(action="ignore"):
        for name in files:
            archive.writestr(name, b"")
    refused(whole.getvalue())


def test_entries_that_overlap_are_refused() -> None:
    """E-198: the bytes of one may not be those of another, nor reach into the directory."""
    data = zipped({"a": b"1" * 100, "b": b"2"}, compression=zipfile.ZIP_STORED)
    assert "overlap" in refused(with_field(data, entry=1, at=0))
    assert "overlap" in refused(with_field(data, packed=101, size=101))
    assert "overlap" in refused(with_field(data, entry=1, packed=2000, size=2000))


def quoted_bomb(count: int) -> bytes:
    """Many entries over one kernel: the form that unpacks to far more than it promises to hold apart."""
    kernel = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = kernel.compress(b"\0" * 1_000_000) + kernel.flush()
    crc = zlib.crc32(b"\0" * 1_000_000)
    local = struct.pack("<4s5H3L2H", LOCAL, 20, 0, 8, 0, 0, crc, len(packed), 1_000_000, 1, 0) + b"a" + packed
    directory = b"".join(
        struct.pack("<4s6H3L5H2L", CENTRAL, 20, 20, 0, 8, 0, 0, crc, len(packed), 1_000_000, 1, 0, 0, 0, 0, 0, 0)
        + bytes([97 + index])
        for index in range(count)
    )
    return local + directory + struct.pack("<4s4H2LH", END, 0, 0, count, count, len(directory), len(local), 0)


def test_a_bomb_of_many_entries_over_one_content_is_refused() -> None:
    """E-198: before anything is unpacked."""
    assert "overlap" in refused(quoted_bomb(20))
    assert len(contents(quoted_bomb(1))["a"] or b"") == 1_000_000


def test_what_unpacks_to_more_than_it_says_is_refused_in_time() -> None:
    """E-198: at most one piece beyond the size is ever unpacked."""
    honest = zipped({"a": b"\0" * 50_000_000})
    lying = with_field(honest, size=1000, crc=zlib.crc32(b"\0" * 1000))
    archive = opened(lying)
    assert archive.size == 1000
    taken = 0
    tracemalloc.start()
    with pytest.raises(BadArchive, match="another content"):
        for piece in archive.read(archive.members[0]):
            taken += len(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken <= 1000
    assert peak < 1 << 20


def test_a_wrong_size_or_crc_is_refused() -> None:
    """E-198, pain 13: less than it says, other bytes, bytes behind the end, a stream that does not unpack."""
    data = zipped({"a": b"hello" * 100, "b": b"x"})
    assert "another content" in refused(with_field(data, crc=1))
    assert "another content" in refused(with_field(data, size=501))
    assert "another content" in refused(with_field(data, size=499))
    cut = with_field(data, packed=opened(data).members[0].record.packed - 1)  # type: ignore[union-attr]
    assert "does not unpack" in refused(cut)
    at = data.index(LOCAL) + 31
    assert "does not unpack" in refused(data[:at] + b"\xff\xff\xff" + data[at + 3 :])
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(b"x") + packer.flush()
    behind = zipped({"a": packed + b"more"}, compression=zipfile.ZIP_STORED)
    behind = with_local(with_field(behind, method=8, size=1, crc=zlib.crc32(b"x")), 8, "H", 8)
    assert "behind the end" in refused(behind)


@pytest.mark.parametrize("gone", [1, 10, 22, 23, 60, 200])
def test_a_cut_archive_is_refused(gone: int) -> None:
    """E-198: however much of it is missing."""
    data = zipped({"a": b"1" * 100, "b": b"2" * 100}, compression=zipfile.ZIP_STORED)
    refused(data[:-gone])


def test_what_stands_before_or_between_is_refused() -> None:
    """E-198: an archive has one reading only."""
    data = zipped({"a": b"1"})
    assert "bytes before" in refused(b"#!/bin/sh\n" + data)
    assert "no end record" in refused(data + b"x")
    assert "no end record" in refused(b"")
    assert "no end record" in refused(b"no archive at all")
    end = data.rindex(END)
    assert "around its directory" in refused(data[:end] + b"gap!" + data[end:])
    parts = bytearray(data)
    struct.pack_into("<H", parts, end + 4, 1)
    assert "several parts" in refused(bytes(parts))
    assert "several parts" in refused(with_field(data, disk=1))


def test_a_comment_is_no_archive() -> None:
    """E-198: an end record inside the comment is not the end."""
    inner, outer = zipped({"inner": b"1"}), io.BytesIO()
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("outer", b"2")
        archive.comment = inner + b" "
    assert contents(outer.getvalue()) == {"outer": b"2"}


def test_another_name_in_the_entry_is_refused() -> None:
    """E-198: tools that read entry by entry would see other files."""
    data = bytearray(zipped({"aaa": b"1"}))
    data[30:33] = b"bbb"
    assert "names otherwise" in refused(bytes(data))


def test_a_directory_of_any_size_costs_little() -> None:
    """E-198: entries are counted before they are read, and a number that lies is found."""
    data = zipped({f"f{index}": b"" for index in range(500)})
    with pytest.raises(TooManyEntries):
        opened(data, most=499)
    assert len(opened(data, most=500).members) == 500
    end, lied = data.rindex(END), bytearray(data)
    struct.pack_into("<2H", lied, end + 8, 3, 3)
    assert "another size" in refused(bytes(lied))
    struct.pack_into("<2H", lied, end + 8, 501, 501)
    with pytest.raises(BadArchive):
        opened(bytes(lied), most=1000)
    with pytest.raises(TooManyEntries):
        opened(zipped({"a/b/c/d": b""}), most=3)


@given(
    st.dictionaries(
        st.text(
            st.characters(exclude_characters="/\\", exclude_categories=("Cc", "Cs")), min_size=1, max_size=8
        ).filter(lambda name: name not in (".", "..")),
        st.binary(max_size=2000),
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_written_is_read_again(files: Mapping[str, bytes]) -> None:
    """E-198: by our reader and by another one, and equal input gives equal bytes."""
    ordered = sorted(files.items(), key=lambda item: item[0].encode())
    data = b"".join(zip_stream((path, len(body), iter([body])) for path, body in ordered))
    assert contents(data) == dict(files) == unzipped(data)
    assert b"".join(zip_stream((path, len(body), iter([body])) for path, body in ordered)) == data


def mutated(data: bytes, edits: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for at, value in edits:
        changed[at % len(changed)] = value
    return bytes(changed)


SEEDS: list[Callable[[], bytes]] = [
    lambda: zipped({"a/b": b"hello" * 50, "c": b"x"}),
    lambda: zipped({"a/b": b"hello", "c/": b""}, compression=zipfile.ZIP_STORED),
    lambda: zip64(zipped({"a": b"1" * 300, "b": b"2"})),
]


@pytest.mark.parametrize("seed", range(len(SEEDS)))
@given(edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_a_damaged_archive_never_surprises(seed: int, edits: list[tuple[int, int]]) -> None:
    """E-198: it is refused, or read to exactly the sizes it told; nothing else is ever raised."""
    try:
        archive = opened(mutated(SEEDS[seed](), edits))
        read = [b"".join(archive.read(member)) for member in archive.members]
    except (BadArchive, TooManyEntries):
        return
    assert [len(data) for data in read] == [member.size for member in archive.members]
