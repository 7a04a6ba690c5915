"""A writer that is killed at any moment leaves a store in which the next one succeeds."""

from __future__ import annotations

import random
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from nylorun.blobs import FileSystemStore, TreeReader, blobs, read_blob, verify
from tests.blobs.helpers import Child, Item, file, folder, names, noise, read, rewrite, write

WRITER = """
import sys
from nylorun.blobs import FileSystemStore, TreeReader
from tests.blobs.helpers import rewrite, write
from tests.blobs.test_killed import items
store = FileSystemStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
tree = rewrite(store, sys.argv[2], items(2)) if sys.argv[2] else write(store, items(1))
print(tree.root, flush=True)
"""


def items(turn: int) -> list[Item]:
    """A disk of 15 MB; every third small file and the large one differ from turn to turn."""
    small = [
        file(b"d/%04d" % number, noise(2000, number * turn if number % 3 == 0 else number)) for number in range(3000)
    ]
    return [folder(b"d"), *small, file(b"e", noise(9 << 20, 7)[: (9 << 20) - turn] + b"x" * turn)]


def run_and_kill(folder: str, previous: str, after: float) -> str:
    """Start a writer, kill it ``after`` seconds; returns the root when it was faster."""
    with Child(WRITER, folder, previous) as writer:
        writer.go()
        with suppress(subprocess.TimeoutExpired):
            writer.process.wait(after)
        return writer.kill()


@pytest.mark.parametrize("second", [False, True], ids=["first version", "second version"])
def test_a_writer_may_be_killed_at_any_moment(tmp_path: Path, second: bool) -> None:
    """E-277: what is named in the store is whole, no root is there without its tree, and the next copy succeeds."""
    rnd = random.Random(1)
    wanted = items(2 if second else 1)
    killed = 0
    for turn in range(6):
        store = FileSystemStore(tmp_path / str(turn))
        previous = write(store, items(1)).root if second else ""
        before = names(store)
        root = run_and_kill(store.folder, previous, rnd.uniform(0.01, 0.15))
        killed += not root
        for name in names(store) - before:
            content = read_blob(store, name)  # whole, or the test fails here
            if content.startswith(b"nylR"):
                assert list(verify(store, name)) == []
        tree = rewrite(store, previous, items(2)) if second else write(store, wanted)
        assert read(store, tree.root) == wanted
        assert list(verify(store, tree.root)) == []
        assert not root or root == tree.root
        if second:
            assert list(verify(store, previous)) == []
        assert dict(blobs(store, tree.root)).keys() <= names(store)
        assert TreeReader(store, tree.root).files == 3002
    assert killed >= 2
