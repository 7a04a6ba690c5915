"""Disk versions with the real processes: byte-exact round trips, and every process killed in the middle of a copy."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nylorun.cli.client import environment_path
from nylorun.kernel.clock import pause
from tests.support.platform import Platform, eventually, platform

pytestmark = pytest.mark.live

POD = {"kind": "pod", "storage": "12GiB", "resources": {"cpus": 1, "memory": "512MiB"}}

AWKWARD = r"""
import os
os.makedirs("empty/inner")
os.chmod("empty", 0o750)
open("zero", "w").close()
open("mode", "w").write("x"); os.chmod("mode", 0o4711)
open(b"name \xff\xfe\n with everything", "wb").write(b"bytes")
open("snowman \N{SNOWMAN}", "w").write("text")
os.symlink("/etc/passwd", "points out"); os.symlink("nowhere", "dangles"); os.symlink("mode", "inside")
os.link("mode", "empty/second name")
with open("sparse", "wb") as file:
    file.truncate(10 << 30); file.seek(5 << 30); file.write(b"middle")
here = "."
for level in range(200):
    here = os.path.join(here, "d"); os.mkdir(here)
open(os.path.join(here, "deep"), "w").write("deep")
os.makedirs("many")
for number in range(3000):
    open(f"many/{number}", "w").write(str(number) * 50)
with open("large", "wb") as file:
    for number in range(48):
        file.write(os.urandom(1 << 20) if number % 2 else bytes(1 << 20))
os.setxattr("mode", "user.origin", b"here")
os.utime("zero", ns=(1, 123_456_789_012_345_678))
"""

SUM = r"""
import hashlib, os, sys
def walk(folder):
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        status = entry.stat(follow_symlinks=False)
        line = [entry.path, oct(status.st_mode)]
        if entry.is_symlink():
            line.append(os.readlink(entry.path))
        elif entry.is_file():
            digest = hashlib.sha256()
            if status.st_size < 1 << 32:
                digest.update(open(entry.path, "rb").read())
            else:
                with open(entry.path, "rb") as file:
                    file.seek(5 << 30); digest.update(file.read(4096))
            line += [status.st_size, status.st_mtime_ns, digest.hexdigest(), status.st_nlink,
                     status.st_blocks * 512 < status.st_size or status.st_size < 1 << 32,
                     sorted((n, os.getxattr(entry.path, n)) for n in os.listxattr(entry.path))]
        else:
            line.append(status.st_mtime_ns)
        yield repr(line)
        if entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path)
print(hashlib.sha256("\n".join(walk(b".")).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def live() -> Iterator[Platform]:
    """One platform for all rounds."""
    with platform("--driver", "local") as running:
        yield running


def python(live: Platform, id: str, program: str) -> str:
    """Run a program in a pod's workspace."""
    return live.bash(id, f"cat > /tmp/program.py <<'END'\n{program}\nEND\npython3 /tmp/program.py").strip()


def ask(live: Platform, path: str, body: dict[str, Any] | None = None, wait: int = 60) -> tuple[int, Any]:
    """A request that waits for its Operation; status and body."""
    headers = {"Authorization": f"Bearer {live.client.key}", "Content-Type": "application/json"}
    data = json.dumps(body or {}).encode()
    request = urllib.request.Request(live.client.url + path, data, {**headers, "Prefer": f"wait={wait}"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def source(live: Platform) -> str:
    """A pod with an awkward tree in version 1; the sum of its tree."""
    live.client.expect(201, "PUT", "/v1/environment-manifests/disk-box", POD)
    live.client.expect(201, "PUT", environment_path("source"), {"manifest": "disk-box"})
    python(live, "source", AWKWARD)
    status, made = ask(live, environment_path("source", "/snapshots"))
    assert (status, made["version"]) == (201, 1), made
    return python(live, "source", SUM)


def test_a_tree_comes_back_as_it_was(live: Platform, source: str) -> None:
    """E-277, pains 13 and 22: names, modes, times, links, holes, attributes and depth; a touched disk is unchanged."""
    assert python(live, "source", SUM) == source
    live.bash("source", "touch mode large")
    status, again = ask(live, environment_path("source", "/snapshots"))
    assert (status, again["created"]) == (200, False)
    live.bash("source", "rm -rf many d; echo other > large")
    status, restored = ask(live, environment_path("source", "/restore"), {"version": 1})
    assert status == 200, restored
    assert python(live, "source", SUM) == source


def test_a_tree_crosses_kinds(live: Platform, source: str) -> None:
    """E-128: pod to virtual and back again; the content hash of the version is the same on both."""
    start = {"environment": "source", "version": 1}
    live.client.expect(201, "PUT", environment_path("light"), {"kind": "virtual", "from": start})
    assert live.bash("light", "cat many/7").startswith("777")
    status, made = ask(live, environment_path("light", "/snapshots"))
    assert status == 201, made
    shas = [version(live, "source", 1)["sha256"], version(live, "light", 1)["sha256"]]
    assert shas[0] == shas[1]
    back = {"environment": "light", "version": 1}
    live.client.expect(201, "PUT", environment_path("heavy"), {**POD, "from": back})
    assert python(live, "heavy", SUM) == source


def version(live: Platform, id: str, number: int) -> Any:
    return live.client.expect(200, "GET", environment_path(id, f"/snapshots/{number}"))


@pytest.mark.parametrize("victim", ["worker-disk", "engine", "postgres", "valkey", "pod"])
@pytest.mark.parametrize("kind", ["snapshot", "restore", "seed", "fork"])
def test_a_process_killed_in_the_middle_of_a_copy_costs_time_only(
    live: Platform, source: str, kind: str, victim: str
) -> None:
    """E-227, E-283, pains 8 and 18: all or nothing, the lease freed or taken over, the next attempt succeeds."""
    id = f"{kind}-{victim}"
    start = {"environment": "source", "version": 1}
    live.client.expect(201, "PUT", environment_path(id), {"manifest": "disk-box"})
    if kind in ("restore", "fork"):
        live.bash(id, "head -c 64M /dev/urandom > noise; for i in $(seq 500); do echo $i > f$i; done")
        assert ask(live, environment_path(id, "/snapshots"))[0] == 201
    elif kind == "snapshot":
        live.bash(id, "head -c 64M /dev/urandom > noise; for i in $(seq 500); do echo $i > f$i; done")
    if kind == "seed":
        id = f"{id}-new"
        live.client.expect(201, "PUT", environment_path(id), {**POD, "from": start})
    else:
        begin(live, id, kind)
    eventually(lambda: running(live, id), what="the copy runs")
    pause(0.05)
    kill(live, victim, id)
    eventually(live.ready, within=90, what="ready again")
    ended = eventually(lambda: over(live, id, kind), within=110, what=f"{kind} of {id} ends")
    assert ended["state"] == "succeeded", ended
    check(live, id, kind, source)
    assert "operation" not in live.view(id)["disk"]


def begin(live: Platform, id: str, kind: str) -> None:
    """Ask for the Operation without waiting for it."""
    path, body = {
        "snapshot": ("/snapshots", {}),
        "restore": ("/restore", {"version": 1}),
        "fork": ("/fork", {"id": f"{id}-fork"}),
    }[kind]
    status, accepted = ask(live, environment_path(id, path), body, wait=0)
    assert status == 202, accepted


def kill(live: Platform, victim: str, id: str) -> None:
    if victim != "pod":
        live.kill(victim)
        return
    try:
        live.kill_pod(id)
    except (LookupError, ProcessLookupError, KeyError, TypeError):
        return  # it is only just being made: nothing to kill


def operations(live: Platform, id: str) -> list[Any]:
    listed = live.client.call("GET", environment_path(id, "/operations"))
    return list(listed.body["operations"]) if listed.status == 200 else []


def running(live: Platform, id: str) -> bool:
    return any(one["state"] in ("running", "succeeded") and one["kind"] != "setup" for one in operations(live, id)[-1:])


def over(live: Platform, id: str, kind: str) -> Any:
    """The newest Operation of this kind, once it ended."""
    found = [one for one in operations(live, id) if one["kind"] == kind]
    return found[-1] if found and found[-1]["state"] not in ("queued", "running") else None


def check(live: Platform, id: str, kind: str, source: str) -> None:
    """What the Operation was to bring about is there, whole."""
    if kind == "snapshot":
        versions = live.client.expect(200, "GET", environment_path(id, "/snapshots"))["versions"]
        assert [one["fileCount"] for one in versions] == [501]
    elif kind == "seed":
        assert python(live, id, SUM) == source
    else:
        filled = f"{id}-fork" if kind == "fork" else id
        assert live.bash(filled, "ls | wc -l; stat -c %s noise").split() == ["501", str(64 << 20)]


def test_a_damaged_blob_fails_loudly(live: Platform, source: str) -> None:
    """E-277, pain 13: truncated, altered or missing, a copy says so and nothing half-made is used."""
    live.client.expect(201, "PUT", environment_path("fragile"), {"kind": "virtual"})
    live.bash("fragile", "echo precious > file; echo $RANDOM$RANDOM > noise")
    assert ask(live, environment_path("fragile", "/snapshots"))[0] == 201
    before = live.bash("fragile", "cat file noise")
    damaged = newest_blobs(live.folder / "blobs")
    kept = {path: path.read_bytes() for path in damaged}
    for path in damaged:
        path.write_bytes(kept[path][:-1])
    status, answer = ask(live, environment_path("fragile", "/restore"), {"version": 1})
    assert (status, answer["code"]) == (503, "disk_copy_failed")
    assert live.bash("fragile", "cat file noise") == before
    for path, content in kept.items():
        path.write_bytes(content)
    assert ask(live, environment_path("fragile", "/restore"), {"version": 1})[0] == 200
    assert live.bash("fragile", "cat file noise") == before


def newest_blobs(folder: Path) -> list[Path]:
    """The blobs of the last snapshot: root, index and content."""
    blobs = sorted((one for one in folder.rglob("*") if one.is_file()), key=lambda one: one.stat().st_mtime_ns)
    return blobs[-3:]


def test_parallel_forks_of_one_source(live: Platform, source: str) -> None:
    """E-134: eight at once from a number; each is whole."""
    answers: dict[int, tuple[int, Any]] = {}

    def fork(number: int) -> None:
        body = {"id": f"twin-{number}", "disk": 1}
        answers[number] = ask(live, environment_path("source", "/fork"), body)

    threads = [threading.Thread(target=fork, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[number][0] for number in range(8)] == [201] * 8, answers
    assert {python(live, f"twin-{number}", SUM) for number in range(8)} == {source}


def test_a_stop_copies_first_and_keeps_the_newest(live: Platform) -> None:
    """E-253, E-254: each stop makes a version before the pod goes; only the newest two stay."""
    body = {**POD, "lifecycle": {"snapshot": "suspend", "keep": 2}}
    live.client.expect(201, "PUT", environment_path("careful"), body)
    for round in range(1, 4):
        assert live.bash("careful", f"echo {round} >> log; wc -l < log").strip() == str(round)
        status, view = ask(live, environment_path("careful", "/stop"))
        assert (status, view["pod"]["desired"]) == (200, "suspended")
    numbers = [
        one["version"] for one in live.client.expect(200, "GET", environment_path("careful", "/snapshots"))["versions"]
    ]
    assert numbers == [3, 2]
    types = live.event_types("careful")
    assert types.count("suspended") == 3
    assert ask(live, environment_path("careful", "/restore"), {"version": 2})[0] == 200
    assert live.bash("careful", "cat log").split() == ["1", "2"]


def test_many_requests_for_one_copy_make_one(live: Platform) -> None:
    """E-119: of twenty at once one holds the disk, the others are told to come back; calls go on afterwards."""
    live.client.expect(201, "PUT", environment_path("crowd"), {"kind": "virtual"})
    live.bash("crowd", "for i in $(seq 50); do echo $i > f$i; done")
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(ask(live, environment_path("crowd", "/snapshots"))[0]))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses.count(201) == 1
    assert set(statuses) <= {200, 201, 409}
    versions = live.client.expect(200, "GET", environment_path("crowd", "/snapshots"))["versions"]
    assert [one["version"] for one in versions] == [1]
    assert live.bash("crowd", "cat f7").strip() == "7"
