"""Disk versions, end to end through the API, beside restic on the same trees in the same run.

Each tree is made twice by one program: in a pod, and in a folder of this host for restic (and ``tar | zstd``). Where
restic is not installed its figures are skipped, and that is said.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nylorun.cli.client import environment_path
from tests.bench.load import p50, timed

POD = {"kind": "pod", "resources": {"cpus": 2, "memory": "1024MiB"}}

SMALL = """
import os, random
chance = random.Random(1)
for folder in range(20):
    os.makedirs(f"t/{folder}")
    for file in range(100):
        lines = [f"def f{chance.randrange(10**6)}(x): return x + {chance.randrange(100)}" for _ in range(560)]
        open(f"t/{folder}/{file}.py", "w").write("\\n".join(lines))
"""
LARGE = """
import os
os.makedirs("t")
with open("t/big", "wb") as file:
    for number in range(1024):
        file.write(os.urandom(1 << 20) if number % 2 else bytes([number % 251]) * (1 << 20))
"""
MANY = """
import os
for folder in range(1000):
    os.makedirs(f"t/{folder}")
    for file in range(100):
        open(f"t/{folder}/{file}", "w").write(f"{folder} {file} " + "x" * 310)
"""


@dataclass(frozen=True)
class Tree:
    """A program that makes it, a command that changes one byte of it."""

    name: str
    program: str
    change: str


TREES = (
    Tree("2,000 files, 40 MB", SMALL, "printf z | dd of=t/3/4.py bs=1 seek=100 conv=notrunc status=none"),
    Tree("one file of 1 GB, half random", LARGE, "printf z | dd of=t/big bs=1 seek=500000000 conv=notrunc status=none"),
    Tree("100,000 files, 32 MB", MANY, "printf z | dd of=t/500/50 bs=1 seek=3 conv=notrunc status=none"),
)


def disks(bench: Any) -> None:
    """Snapshot, restore and fork of each tree, and what a copy costs others."""
    restic = shutil.which("restic")
    if restic is None:
        print("restic is not installed: figures of disks stand without its floor", flush=True)
    bench.live.client.expect(201, "PUT", "/v1/environment-manifests/bench-disk", POD)
    for number, tree in enumerate(TREES):
        _tree(bench, tree, f"disk-{number}", None if restic is None else Restic(restic))
    _others(bench)


def _tree(bench: Any, tree: Tree, id: str, restic: Restic | None) -> None:
    ask(bench, "PUT", environment_path(id), {"manifest": "bench-disk"})
    bench.live.bash(id, f"cat > /tmp/make.py <<'END'\n{tree.program}\nEND\npython3 /tmp/make.py && sync")
    if restic is not None:
        restic.make(tree.program)
    before = stored(bench)
    snapshot = environment_path(id, "/snapshots")
    _figure(
        bench,
        tree,
        "first snapshot",
        lambda: ask(bench, "POST", snapshot),
        None if restic is None else restic.backup,
        0.6,
    )
    if restic is not None:
        bench.note(
            f"{tree.name}: stored", (stored(bench) - before) / 1e6, unit="MB", floor=restic.size() / 1e6, bar=1.0
        )
    _figure(
        bench, tree, "unchanged", lambda: ask(bench, "POST", snapshot), None if restic is None else restic.backup, 0.5
    )
    bench.live.bash(id, f"{tree.change}; sync")
    if restic is not None:
        subprocess.run(tree.change, shell=True, cwd=restic.tree, check=True)
    _figure(
        bench,
        tree,
        "one byte changed",
        lambda: ask(bench, "POST", snapshot),
        None if restic is None else restic.backup,
        0.4,
    )
    restore = environment_path(id, "/restore")
    took = _figure(
        bench,
        tree,
        "restore",
        lambda: ask(bench, "POST", restore, {"version": 1}),
        None if restic is None else restic.restore,
        1.0,
    )
    forked = timed(lambda: _fork(bench, id))
    bench.note(f"{tree.name}: fork to first command beyond a restore", forked - took, bar=300)
    for one in (id, f"{id}-fork"):
        bench.live.client.expect(200, "DELETE", environment_path(one, "?force=true"))
    if restic is not None:
        restic.close()


def _figure(
    bench: Any, tree: Tree, what: str, ours: Callable[[], object], theirs: Callable[[], object] | None, bar: float
) -> float:
    floor = None if theirs is None else timed(theirs)
    value = timed(ours)
    if floor is None:
        print(f"     {tree.name}: {what}: {value:.0f} ms", flush=True)
    else:
        bench.note(f"{tree.name}: {what}", value, floor=floor, bar=bar)
    return value


def _fork(bench: Any, id: str) -> None:
    body = {"id": f"{id}-fork", "manifest": "bench-disk", "disk": 1}
    ask(bench, "POST", environment_path(id, "/fork"), body)
    bench.live.bash(f"{id}-fork", "echo hi")


def _others(bench: Any) -> None:
    """A warm command elsewhere while a large disk is copied, beside the same command while nothing is."""
    ask(bench, "PUT", environment_path("disk-busy"), {"manifest": "bench-disk"})
    bench.live.bash("disk-busy", f"cat > /tmp/make.py <<'END'\n{LARGE}\nEND\npython3 /tmp/make.py && sync")
    bash = bench.caller("POST", environment_path("bench", "/tools/bash"), b'{"command":"echo hi"}')
    idle = p50([timed(bash) for _ in range(200)])
    copying = threading.Thread(target=lambda: ask(bench, "POST", environment_path("disk-busy", "/snapshots")))
    copying.start()
    busy = []
    while copying.is_alive():
        busy.append(timed(bash))
    copying.join()
    bench.note("warm bash elsewhere during a snapshot of 1 GB, p50", p50(busy), floor=idle, bar=2)
    bench.live.client.expect(200, "DELETE", environment_path("disk-busy", "?force=true"))


def ask(bench: Any, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    """A request that waits for the end of its Operation; anything but success ends the benchmark."""
    headers = {"Authorization": f"Bearer {bench.live.client.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        bench.live.client.url + path, json.dumps(body or {}).encode(), {**headers, "Prefer": "wait=60"}, method=method
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status in (200, 201), answer.read()


def stored(bench: Any) -> int:
    """Bytes of the installation's blobs."""
    return sum(path.stat().st_size for path in (bench.live.folder / "blobs").rglob("*") if path.is_file())


class Restic:
    """The same tree in a folder of this host, and a repository beside it."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="nylorun-bench-"))
        self.tree = self._folder / "tree"
        self.tree.mkdir()
        self._environment = {**os.environ, "RESTIC_PASSWORD": "x", "RESTIC_REPOSITORY": str(self._folder / "repo")}
        self._environment["RESTIC_CACHE_DIR"] = str(self._folder / "cache")
        self._run("init")

    def make(self, program: str) -> None:
        """Make the tree."""
        subprocess.run(["python3", "-c", program], cwd=self.tree, check=True)
        subprocess.run(["sync"], check=True)

    def backup(self) -> None:
        """What a snapshot is beside."""
        self._run("backup", "--quiet", str(self.tree))

    def restore(self) -> None:
        """The first snapshot, into an empty folder."""
        listed = json.loads(self._run("snapshots", "--json"))
        target = self._folder / "restored"
        self._run("restore", listed[0]["id"], "--target", str(target))
        shutil.rmtree(target)

    def size(self) -> int:
        """Bytes of the repository."""
        return sum(path.stat().st_size for path in (self._folder / "repo").rglob("*") if path.is_file())

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder)

    def _run(self, *arguments: str) -> bytes:
        command = [self._program, *arguments]
        return subprocess.run(command, env=self._environment, check=True, capture_output=True).stdout
