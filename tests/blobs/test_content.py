"""The content manifest: its very bytes, and that every name has a text of its own."""

from __future__ import annotations

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st

from nylorun.blobs import MemoryStore, TreeReader, content_manifest
from nylorun.kernel.canonical import canonical
from tests.blobs.helpers import Item, file, folder, link, sparse, write


def manifest(items: list[Item]) -> tuple[bytes, str]:
    """The bytes, and the hash that the writer made of them."""
    store = MemoryStore()
    tree = write(store, items)
    return b"".join(content_manifest(TreeReader(store, tree.root))), tree.sha256


def test_the_empty_tree_has_these_bytes() -> None:
    """E-129: a literal."""
    content, sha256 = manifest([])
    assert content == b'{"entries":[],"format":"nylorun.disk.v1"}'
    assert sha256 == "sha256:0fd15875e2149cf3e67859ac7bdc62d12907ebf80e22162bff6f7eb624f9696e"


def test_a_tree_of_each_kind_has_these_bytes() -> None:
    """E-129: keys sorted, modes of four digits, a later name is a file like any other, times are left out."""
    content, sha256 = manifest(
        [
            folder(b"bin", mode=0o1755, mtime_ns=9),
            file(b"bin/tool", b"hello", mode=0o4755, xattrs={b"user.a": b"b"}),
            file(b"copy", hardlink=b"bin/tool", mode=0o4755),
            file(b"empty", mode=0),
            sparse(b"hole", 5, []),
            link(b"link", b"../\xff"),
        ]
    )
    hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    zeros = "8855508aade16ec573d21e6a485dfd0a7624085c1a14b5ecdd6485de0c6839a4"
    assert content.decode() == (
        '{"entries":['
        '{"mode":"1755","path":"bin","type":"dir"},'
        '{"mode":"4755","path":"bin/tool","sha256":"sha256:' + hello + '","size":5,"type":"file"},'
        '{"mode":"4755","path":"copy","sha256":"sha256:' + hello + '","size":5,"type":"file"},'
        '{"mode":"0000","path":"empty","sha256":"sha256:' + nothing + '","size":0,"type":"file"},'
        '{"mode":"0644","path":"hole","sha256":"sha256:' + zeros + '","size":5,"type":"file"},'
        '{"mode":"0777","path":"link","target":"../\\udcff","type":"link"}'
        '],"format":"nylorun.disk.v1"}'
    )
    assert sha256 == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_odd_names_have_these_bytes() -> None:
    """E-277: UTF-8 is not escaped, control characters and quotes are, other bytes are lone surrogates."""
    content, _ = manifest(
        [folder(name) for name in sorted([b'"\\', b"\n\x01\x7f", "ü€".encode(), b"\xc3", b"\\udcc3"])]
    )
    assert content == (
        b'{"entries":['
        b'{"mode":"0755","path":"\\n\\u0001\x7f","type":"dir"},'
        b'{"mode":"0755","path":"\\"\\\\","type":"dir"},'
        b'{"mode":"0755","path":"\\\\udcc3","type":"dir"},'
        b'{"mode":"0755","path":"\\udcc3","type":"dir"},'
        b'{"mode":"0755","path":"\xc3\xbc\xe2\x82\xac","type":"dir"}'
        b'],"format":"nylorun.disk.v1"}'
    )


@given(
    st.lists(st.binary(min_size=1, max_size=6).filter(lambda name: not {0, 47} & set(name)), unique=True, max_size=8)
)
def test_names_can_be_told_from_the_manifest(names: list[bytes]) -> None:
    """E-277: what is in the JSON leads back to the bytes; so different trees have different hashes."""
    kept = sorted(set(names) - {b".", b".."})
    content, _ = manifest([link(name, name) for name in kept])
    entries = json.loads(content)["entries"]
    assert [entry["path"].encode("utf-8", "surrogateescape") for entry in entries] == kept
    assert [entry["target"].encode("utf-8", "surrogateescape") for entry in entries] == kept


@given(
    st.lists(st.text(min_size=1, max_size=6).filter(lambda name: not set("\0/") & set(name)), unique=True, max_size=8)
)
def test_names_that_are_text_are_canonical_json(names: list[str]) -> None:
    """E-54: the very canonical form of manifests."""
    kept = sorted({name.encode() for name in names} - {b".", b".."})
    content, _ = manifest([folder(name) for name in kept])
    entries = [{"type": "dir", "path": name.decode(), "mode": "0755"} for name in kept]
    assert content == canonical({"format": "nylorun.disk.v1", "entries": entries}).encode()


def test_large_manifests_are_made_in_pieces() -> None:
    """E-129: several thousand entries come in many pieces, which hash to what the tree says."""
    store = MemoryStore()
    reader = TreeReader(store, write(store, [file(b"%05d" % number) for number in range(5500)]).root)
    pieces = list(content_manifest(reader))
    assert len(pieces) > 5
    assert reader.sha256 == f"sha256:{hashlib.sha256(b''.join(pieces)).hexdigest()}"
    assert [entry["path"] for entry in json.loads(b"".join(pieces))["entries"]] == [f"{n:05d}" for n in range(5500)]
