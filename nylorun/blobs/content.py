"""The content manifest: what a version of a disk holds, as canonical JSON, and its hash.

``{"entries":[…],"format":"nylorun.disk.v1"}``, entries in bytewise order of their paths, keys sorted, no spaces,
UTF-8 unescaped (``nylorun.kernel.canonical``). Names are bytes: a byte that is not UTF-8 appears as its
lone-surrogate escape (``\\udc80`` to ``\\udcff``), so different names have different texts. Times, later names, holes
and attributes are no part. It is made in a stream, never held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from json.encoder import encode_basestring

from nylorun.blobs.records import DIR, FILE, HEAD, SHA256, target_at

FORMAT = "nylorun.disk.v1"
_BEGIN = '{"entries":['
_END = f'],"format":"{FORMAT}"}}'
_BATCH = 1000


class Manifest:
    """Hands the manifest's bytes to ``write``, a thousand entries at a time, as records are added in order."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._waiting: list[str] = []
        self._before = _BEGIN

    def add(self, raw: bytes) -> None:
        """The next entry, as a final record."""
        self._waiting.append(entry_json(raw))
        if len(self._waiting) >= _BATCH:
            self._hand_over()

    def end(self) -> None:
        """The rest; nothing may be added afterwards."""
        self._hand_over()
        self._write(_END.encode())

    def _hand_over(self) -> None:
        if self._waiting or self._before == _BEGIN:
            text = self._before + ",".join(self._waiting)
            self._waiting.clear()
            self._before = ","
            self._write(text.encode("utf-8", "backslashreplace"))


def manifest_of(raws: Iterable[bytes]) -> Iterator[bytes]:
    """The manifest of a whole tree's records, in pieces."""
    due: list[bytes] = []
    manifest = Manifest(due.append)
    for raw in raws:
        manifest.add(raw)
        if due:
            yield due.pop()
    manifest.end()
    yield from due


def sha256_text(digest: bytes) -> str:
    """A SHA-256 as every answer shows it."""
    return f"sha256:{digest.hex()}"


def entry_json(raw: bytes) -> str:
    """One entry's text; bytes that are not UTF-8 are lone surrogates in it."""
    _, kind, _, mode, size, _, path_size, stat_size = HEAD.unpack_from(raw)
    at = HEAD.size + path_size
    path = _text(raw[HEAD.size : at])
    at += stat_size
    if kind == FILE:
        sha256 = raw[at : at + SHA256].hex()
        return f'{{"mode":"{mode:04o}","path":{path},"sha256":"sha256:{sha256}","size":{size},"type":"file"}}'
    if kind == DIR:
        return f'{{"mode":"{mode:04o}","path":{path},"type":"dir"}}'
    return f'{{"mode":"{mode:04o}","path":{path},"target":{_text(target_at(raw, at))},"type":"link"}}'


def _text(name: bytes) -> str:
    return encode_basestring(name.decode("utf-8", "surrogateescape"))
