"""Trees by hand: entries with their data, written and read back."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from nylorun.blobs import Entry, MemoryStore, Store, StoredBlob, Tree, TreeReader, TreeWriter

Item = tuple[Entry, bytes]


def folder(path: bytes, **fields: Any) -> Item:
    """A folder."""
    return Entry(path, "dir", fields.pop("mode", 0o755), **fields), b""


def link(path: bytes, target: bytes, **fields: Any) -> Item:
    """A symbolic link."""
    return Entry(path, "link", 0o777, target=target, **fields), b""


def file(path: bytes, data: bytes = b"", **fields: Any) -> Item:
    """A file whose data is ``data``; without ``extents`` it is its content."""
    fields.setdefault("size", len(data))
    return Entry(path, "file", fields.pop("mode", 0o644), **fields), data


def sparse(path: bytes, size: int, extents: Iterable[tuple[int, bytes]], **fields: Any) -> Item:
    """A file with holes."""
    parts = list(extents)
    places = tuple((offset, len(data)) for offset, data in parts)
    return file(path, b"".join(data for _, data in parts), size=size, extents=places, **fields)


@lru_cache(maxsize=256)
def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress, the same for the same seed."""
    return random.Random(seed).randbytes(size)


def no_claim(batch: list[tuple[str, int]]) -> None:
    """Nobody collects what a test stores."""


def add(writer: TreeWriter, item: Item, piece: int = 1 << 18) -> None:
    """Give one item to a writer, its data in pieces."""
    entry, data = item
    if entry.kind == "dir":
        writer.add_dir(entry)
    elif entry.kind == "link":
        writer.add_link(entry)
    else:
        writer.add_file(entry, (data[at : at + piece] for at in range(0, len(data), piece)))


def write(store: Store, items: Iterable[Item], claim: Any = no_claim, piece: int = 1 << 18, **options: Any) -> Tree:
    """A whole tree from nothing."""
    with TreeWriter(store, claim, **options) as writer:
        for item in items:
            add(writer, item, piece)
        return writer.finish()


def rewrite(
    store: Store,
    root: str,
    changed: Iterable[Item] = (),
    *,
    without: Iterable[bytes] = (),
    claim: Any = no_claim,
) -> Tree:
    """The tree at ``root`` again, keeping every entry but those that are changed, new or left out."""
    previous = TreeReader(store, root)
    news = {item[0].path: item for item in changed}
    gone = set(without)
    kept = {path: raw for path, _, raw in previous.raw_entries() if path not in news and path not in gone}
    with TreeWriter(store, claim, previous) as writer:
        for path in sorted(kept.keys() | news.keys()):
            if path in news:
                add(writer, news[path])
            else:
                writer.keep(kept[path])
        return writer.finish()


def read(store: Store, root: str) -> list[Item]:
    """Every entry as it was given (without what the writer filled in) with the data of its extents."""
    return [
        (_as_given(entry), b"".join(data))
        for entry, data in TreeReader(store, root).contents()  # each is read before the next is asked for
    ]


def names(store: Store) -> set[str]:
    """Everything stored."""
    return {blob.key for blob in store.list()}


def stored(store: Store) -> int:
    """Bytes stored."""
    return sum(blob.size for blob in store.list())


class WatchedStore:
    """A store that notes what is asked of it."""

    def __init__(self, within: Store | None = None) -> None:
        self.within = within or MemoryStore()
        self.calls: list[tuple[str, str]] = []

    def put(self, key: str, data: bytes) -> None:
        self.calls.append(("put", key))
        self.within.put(key, data)

    def get(self, key: str) -> bytes:
        self.calls.append(("get", key))
        return self.within.get(key)

    def has(self, key: str) -> bool:
        self.calls.append(("has", key))
        return self.within.has(key)

    def delete(self, key: str) -> None:
        self.within.delete(key)

    def list(self) -> Iterator[StoredBlob]:
        return self.within.list()

    def check(self) -> None:
        self.within.check()

    def keys(self, call: str) -> set[str]:
        """The keys of one kind of call."""
        return {key for name, key in self.calls if name == call}


class Child:
    """A Python program that says "ready", waits for a line, and is killed in the end."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> Self:
        assert self.line() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def line(self) -> str:
        """The next line it says; empty when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> str:
        """SIGKILL; returns what it said and nobody read."""
        self.process.kill()
        return self.process.communicate()[0].strip() if self.process.stdout and not self.process.stdout.closed else ""


def _as_given(entry: Entry) -> Entry:
    size = entry.size if entry.hardlink is None else 0
    return replace(entry, sha256=b"", refs=(), size=size)
