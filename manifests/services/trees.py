"""Reading the content of a version: its entries, its bytes, what changed between two, and a whole tree for an archive.

Everything comes from the blob store, verified; no database connection is held. What cannot be read is
``ServiceUnavailable``: before the first byte, or by ending the iterator with it. Bytes are read blob by blob as they
are taken, nothing ahead: many slow readers cost one blob of memory each (at most 4 MiB).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from manifests.models import ArtifactVersion
from manifests.store import answering, current_store
from nylorun.blobs import Entry, Ref, TreeReader, read_blob
from nylorun.db.tx import require_no_tx
from nylorun.http.waiting import release
from nylorun.kernel.errors import NotFound, ServiceUnavailable

CONTENT: Final = b"content"
"""The path of the one entry of a file's tree."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths of files, each list sorted by code point."""

    added: list[str]
    removed: list[str]
    changed: list[str]


def path_of(entry: Entry) -> str:
    """The path of an entry of an artifact, which is UTF-8."""
    return entry.path.decode()


def files(version: ArtifactVersion) -> list[Entry]:
    """Every file of a tree, in the order of its bytes."""
    with answering():
        return [entry for entry in _reader(version).entries() if entry.kind == "file"]


def file_at(version: ArtifactVersion, path: bytes) -> Entry:
    """The file of this path; the opaque 404 when there is none."""
    with answering():
        entry = _reader(version).find(path)
    if entry is None or entry.kind != "file":
        raise NotFound
    return entry


def chunks(entry: Entry, start: int, length: int) -> Iterator[bytes]:
    """``length`` bytes of a file from ``start``, in pieces."""
    with answering():
        _release()
        yield from _Bytes().of(entry, start, length)


def difference(before: ArtifactVersion, after: ArtifactVersion) -> Difference:
    """Which files ``after`` has more, less, and with other content than ``before``."""
    old, new = _hashes(before), _hashes(after)
    return Difference(
        added=sorted(new.keys() - old.keys()),
        removed=sorted(old.keys() - new.keys()),
        changed=sorted(path for path in new.keys() & old.keys() if new[path] != old[path]),
    )


def members(version: ArtifactVersion) -> Iterator[tuple[str, int | None, Iterator[bytes]]]:
    """Path, size (``None`` for a folder) and bytes of every entry, in order; take the bytes of one before the next."""
    with answering():
        content = _Bytes()
        for entry in _reader(version).entries():
            if entry.kind == "file":
                yield path_of(entry), entry.size, content.of(entry, 0, entry.size)
            else:
                yield path_of(entry), None, iter(())


def _hashes(version: ArtifactVersion) -> dict[str, bytes]:
    return {path_of(entry): entry.sha256 for entry in files(version)}


class _Bytes:
    """The bytes of files, from the blobs their entries name; the last blob is kept, since small files share one."""

    def __init__(self) -> None:
        self._store = current_store()
        self._name, self._data = "", b""

    def of(self, entry: Entry, start: int, length: int) -> Iterator[bytes]:
        """``length`` bytes from ``start``, or an error: never less."""
        left = length
        for ref in entry.refs:
            if left and start < ref.length:
                piece = self._blob(ref)[ref.offset + start : ref.offset + min(ref.length, start + left)]
                left -= len(piece)
                yield piece
            start = max(0, start - ref.length)
        if left:
            raise ServiceUnavailable("Stored content is shorter than it should be.")

    def _blob(self, ref: Ref) -> bytes:
        if ref.blob != self._name:
            self._name, self._data = ref.blob, read_blob(self._store, ref.blob, ref.size)
        return self._data


def _reader(version: ArtifactVersion) -> TreeReader:
    _release()
    return TreeReader(current_store(), version.root)


def _release() -> None:
    """The store is asked outside transactions, and without a connection that others could use."""
    require_no_tx()
    release()
