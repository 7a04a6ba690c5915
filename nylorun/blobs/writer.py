"""Writing a tree: entries in, blobs out.

Two moments. While entries come, their contents are cut, claimed and stored, and their records are kept aside
(``spool.py``). ``finish`` then knows the whole tree: it re-packs blocks that hold little that is still wanted, makes
the content manifest's hash, stores the index and last of all the root (``finishing.py``). When every entry of the
previous tree was kept, it does none of this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nylorun.blobs import records
from nylorun.blobs.content import sha256_text
from nylorun.blobs.cutting import CHUNK_MAX, SMALL, Cutter
from nylorun.blobs.entry import Entry, check_entry, check_plain, data_size
from nylorun.blobs.errors import BadTree
from nylorun.blobs.finishing import Finish
from nylorun.blobs.hashing import FileHash, Lane, hash_of
from nylorun.blobs.order import Order
from nylorun.blobs.packer import Packer
from nylorun.blobs.reader import TreeReader
from nylorun.blobs.sink import Claim, Sink
from nylorun.blobs.spool import Spool
from nylorun.blobs.store import Store


@dataclass(frozen=True, slots=True)
class Tree:
    """A stored tree.

    ``sha256`` is of the content manifest, ``size`` the sum of the file sizes in it (a file with two names counts twice,
    so equal contents have equal sizes), ``files`` the number of entries. ``unchanged``: ``root`` is the previous one.
    """

    root: str
    sha256: str
    size: int
    files: int
    unchanged: bool


class TreeWriter:
    """Writes one tree, in one thread; use it as a context manager.

    ``claim(batch)`` gets ``(blob id, uncompressed size)`` pairs before the store is asked for these blobs or given
    them, index and root included, in the thread that calls the writer, or with ``claim_aside`` in one of its own, one
    batch at a time. ``previous`` is a tree whose entries may be
    kept; its blobs are taken to be stored and whole. With ``heal`` every other blob that is stored already is read,
    and stored again when it is damaged; else it is taken to be whole, too. At most ``max_entries`` entries and
    ``max_bytes`` bytes of file sizes are taken.

    Entries come in strictly ascending bytewise order of their paths, folders before what is in them. Errors:
    ``BadTree`` for what is no legal tree, ``TreeTooLarge``, ``StoreUnavailable``, and whatever ``claim`` raises;
    after the last two the writer is closed. Leaving the context without ``finish`` stops all work: nothing is stored
    afterwards.
    """

    def __init__(
        self,
        store: Store,
        claim: Claim,
        previous: TreeReader | None = None,
        *,
        max_entries: int | None = None,
        max_bytes: int | None = None,
        heal: bool = False,
        claim_aside: bool = False,
    ) -> None:
        self.unused: frozenset[str] = frozenset()
        """After ``finish``: blobs that were claimed and that the tree does not name, of files that were given twice."""
        self._previous = previous
        self._order = Order(max_entries, max_bytes)
        self._sink = Sink(store, claim, previous.segment_names() if previous else (), heal=heal, aside=claim_aside)
        self._packer = Packer(self._sink)
        self._spool = Spool()
        self._lane = Lane()
        self._cutter = Cutter()
        self._kept = 0
        self._first_names: set[bytes] = set()
        self._abandoned: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_dir(self, entry: Entry) -> None:
        """The next entry, a folder."""
        self._add_plain(entry, "dir")

    def add_link(self, entry: Entry) -> None:
        """The next entry, a symbolic link."""
        self._add_plain(entry, "link")

    def add_file(self, entry: Entry, chunks: Iterable[bytes] = ()) -> None:
        """The next entry, a file; ``chunks`` is the data of its extents in order, in pieces of any size.

        A later name of a file (``hardlink``) comes without data. When ``chunks`` raises, or does not hold as many bytes
        as ``entry`` says (``BadTree``), the entry is not added and may be given again.
        """
        self._sink.require_open()
        check_entry(entry)
        if entry.kind != "file":
            raise BadTree(f"{entry.path[:200]!r} is no file.")
        self._order.check(entry.path, entry.size)
        size = data_size(entry)
        if size <= SMALL:
            raw = self._small(entry, _exactly(entry, chunks, size))
        else:
            raw = self._large(entry, _exactly(entry, chunks, size), size)
        self._order.admit(entry.path, entry.size, is_dir=False)
        if entry.hardlink is not None:
            self._first_names.add(entry.hardlink)
        self._spool.append(raw)

    def add_small_file(self, path: bytes, data: bytes, *, mode: int, mtime_ns: int, stat: bytes = b"") -> None:
        """The next entry, a file that is ``data``, at most ``SMALL`` bytes, without holes, attributes and other names.

        The same as ``add_file`` with such an entry, at a third of its cost.
        """
        self._sink.require_open()
        check_plain(path, mode, mtime_ns, stat)
        if len(data) > SMALL:
            raise BadTree(f"{path[:200]!r} is not small.")
        self._order.admit(path, len(data), is_dir=False)
        sha256 = hashlib.sha256(data).digest()
        refs = self._packer.add(data, sha256) if data else b""
        self._spool.append(records.pack_file(path, mode, len(data), mtime_ns, stat, sha256, refs))

    def keep(self, raw: bytes) -> None:
        """The next entry, unchanged from ``previous``: ``raw`` as its ``raw_entries`` gave it."""
        self._sink.require_open()
        _, kind, flags, _, size, _, path, _ = records.HEAD.unpack_from(raw)
        begin = records.HEAD.size
        self._order.admit(raw[begin : begin + path], size, kind == records.DIR)
        if flags & records.HARDLINK:
            self._first_names.add(records.first_name(raw, records.head(raw)))
        self._kept += 1
        self._spool.append(raw)

    def finish(self) -> Tree:
        """The tree, once all of it is durable. The writer can do nothing more.

        Raises ``BadTree`` when a ``hardlink`` names no file of this tree, ``BlobMissing`` and ``BlobDamaged`` when a
        block of ``previous`` that is to be re-packed is lost: write the tree again without ``previous`` and with
        ``heal``.
        """
        self._sink.require_open()
        try:
            if self._previous and self._kept == self._order.files == self._previous.files:
                return self._unchanged(self._previous)
            self._packer.end()
            end = Finish(self._sink, self._packer, self._previous, self._first_names, self._abandoned)
            root = end.run(self._spool)
            self._sink.settle()
            self.unused = frozenset(name.hex() for name in end.unused())
            name, _ = self._sink.blob(self._sink.add(root))
            self._sink.settle()
            return Tree(name.hex(), sha256_text(end.sha256), end.size, self._order.files, unchanged=False)
        finally:
            self.close()

    def close(self) -> None:
        """Stop, waiting for what is under way. Closing again does nothing."""
        self._lane.close()
        self._sink.close()
        self._spool.close()

    def _add_plain(self, entry: Entry, kind: str) -> None:
        self._sink.require_open()
        check_entry(entry)
        if entry.kind != kind:
            raise BadTree(f"{entry.path[:200]!r} is no {kind}.")
        self._order.admit(entry.path, 0, kind == "dir")
        self._spool.append(records.pack(entry))

    def _small(self, entry: Entry, chunks: Iterable[bytes]) -> bytes:
        data = b"".join(chunks)
        sha256 = bytes(records.SHA256) if entry.hardlink is not None else hash_of(entry, data)
        return records.pack(entry, sha256, self._packer.add(data, sha256) if data else b"")

    def _large(self, entry: Entry, chunks: Iterable[bytes], size: int) -> bytes:
        content, refs = FileHash(entry), []
        numbers: list[int] = []
        if self._previous is not None and (before := self._previous.find(entry.path)) is not None:
            self._sink.know(bytes.fromhex(ref.blob) for ref in before.refs)
        aside = size > CHUNK_MAX  # one chunk is hashed sooner than it is handed over
        try:
            cut = self._cutter.cut(chunks)
            for chunk, name in (
                self._lane.run(content.take, cut) if aside else ((one, content.take(one)) for one in cut)
            ):
                numbers.append(self._sink.add(chunk, name))
                refs.append(records.pending(numbers[-1], 0, len(chunk)))
        except BaseException:
            self._abandoned += numbers
            raise
        return records.pack(entry, content.digest(), b"".join(refs))

    def _unchanged(self, previous: TreeReader) -> Tree:
        self.unused = frozenset(name.hex() for name in self._sink.names())
        return Tree(previous.root, previous.sha256, previous.size, previous.files, unchanged=True)


def _exactly(entry: Entry, chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """``chunks``, which must be ``size`` bytes together: else ``BadTree``, before any more are taken."""
    left = size
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            break
        yield chunk
    if left:
        raise BadTree(f"{entry.path[:200]!r} has {'more' if left < 0 else 'less'} data than the {size} bytes it says.")
