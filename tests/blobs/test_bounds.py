"""What a copy may cost: memory that does not grow with the disk, and threads that end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PEAK = """
import random, resource, sys
from nylorun.blobs import Entry, FileSystemStore, TreeReader, TreeWriter, verify

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

def write(writer):
    if sys.argv[2] == "large":
        rnd = random.Random(1)
        writer.add_file(Entry(b"f", "file", 0o644, size=300 << 20), (rnd.randbytes(1 << 18) for _ in range(1200)))
        return
    for number in range(150_000):
        path = b"some/longer/path/for/a/file/%07d" % number
        writer.add_dir(Entry(path.replace(b"/", b"-"), "dir", 0o755, stat=b"%049d" % number))

store = FileSystemStore(sys.argv[1])
begin = peak()
with TreeWriter(store, lambda batch: None) as writer:
    write(writer)
    tree = writer.finish()
print(peak() - begin)
taken = 0
for entry, data in TreeReader(store, tree.root).contents():
    taken += 1 + sum(map(len, data))
print(peak() - begin, taken)
assert not list(verify(store, tree.root))
previous = TreeReader(store, tree.root)
with TreeWriter(store, lambda batch: None, previous) as writer:
    for _, _, raw in previous.raw_entries():
        writer.keep(raw)
    writer.add_dir(Entry(b"zzz", "dir", 0o755))
    writer.finish()
print(peak() - begin)
"""


@pytest.mark.parametrize(("disk", "taken"), [("large", (300 << 20) + 1), ("many", 150_000)])
def test_memory_stays_flat(tmp_path: Path, disk: str, taken: int) -> None:
    """E-129: at most 100 MiB above the start, for a file of 300 MiB and for 150 000 entries, writing and reading."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "blobs"), disk], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    writing, reading, again = done.stdout.splitlines()
    assert float(writing) < 100
    assert float(reading.split()[0]) < 100
    assert int(reading.split()[1]) == taken
    assert float(again) < 120
    print(done.stdout)
