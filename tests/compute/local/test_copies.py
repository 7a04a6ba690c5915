"""Disk copies through the Engine of a real pod: its user, its memory, and its processes held still."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from environments.compute.channel import EngineChannel
from environments.compute.contract import Interrupted, NotAccepted
from environments.compute.copying import CopyFailed, NewEntry, Target, hold, list_tree, read_files, swap, write_tree
from environments.compute.local.driver import LocalDriver
from tests.compute.copying.support import MIB, new_entries, paths_of
from tests.compute.local.helpers import NAME, Client, ControlPlane, drain, eventually, joined, spec

REPOSITORY = Path(__file__).resolve().parents[3]
ENGINE_MOST_KIB = 40 * 1024
WRITER = "echo $$ > /tmp/writer; while :; do echo x >> /workspace/log; done"
FORKER = "echo $$ > /tmp/forker; while :; do (echo y >> /workspace/forks; (echo z >> /workspace/forks &)); done"


@pytest.fixture
def disk(pod: Client) -> Target:
    """The disk of the shared pod, empty."""
    pod.sh("pkill -9 -x sleep; pkill -9 -f 'while[ ]:'; chmod -R u+rwX /workspace; find /workspace -mindepth 1 -delete")
    unique = hashlib.sha256(os.urandom(8)).hexdigest()[:16]
    return Target(EngineChannel(f"unix:{pod.path}"), pod.epoch, f"op_{unique}", 1)


def next_copy(disk: Target) -> Target:
    return replace(disk, attempt=disk.attempt + 1)


def test_a_pods_disk_comes_back_the_same_with_what_its_user_closed_to_himself(pod: Client, disk: Target) -> None:
    """E-277: files and folders of mode 0000 are copied by their owner without powers, and keep their modes."""
    pod.sh(
        "mkdir -p open/shut/in half; echo secret > open/shut/in/file; echo more > half/file; ln half/file half/second;"
        "ln -s nowhere link; printf 'x' > $'\\xff\\n'; touch -d 2001-02-03T04:05:06.789 open/shut/in/file;"
        "truncate -s 1G sparse; chmod 0 open/shut/in/file open/shut/in open/shut; chmod 0111 half; chmod 2755 open;"
        "chmod 4711 sparse"
    )
    states = "find . -mindepth 1 -printf '%y %m %T@ %n %s %l %p\\n' 2>/dev/null | LC_ALL=C sort -k 7"
    before = pod.bash(states).out
    with list_tree(disk) as listing:
        entries = list(listing)
    assert paths_of(entries) == [
        b"half", b"half/file", b"half/second", b"link", b"open", b"open/shut", b"open/shut/in", b"open/shut/in/file",
        b"sparse", b"\xff\n",
    ]  # fmt: skip
    assert (listing.skipped, listing.unreachable) == (0, 0)
    kept = [(entry, list(data)) for entry, data in new_entries(disk, entries)]
    assert {entry.path: data for entry, data in kept}[b"open/shut/in/file"] == [b"secret\n"]
    assert pod.bash(states).out == before
    assert write_tree(disk, kept).entries == len(entries)
    assert pod.bash(states).out == before
    assert pod.sh("chmod -R u+rwX .; cat open/shut/in/file half/second; du sparse") == "secret\nmore\n0\tsparse"


def test_the_engine_stays_small_whatever_the_tree(pod: Client, disk: Target) -> None:
    """An Engine lives in its pod's memory: 60 000 long names and a large file take no more than 40 MB."""
    pod.sh(
        "mkdir flat && cd flat && p=$(printf 'n%.0s' {1..180}) && for i in {1..20}; do "
        '(eval "touch $p-$i-{1..3000}"); done; head -c 200000000 /dev/zero > ../big',
        timeoutMs=120_000,
    )
    with list_tree(disk) as listing:
        count = sum(1 for _ in listing)
    assert count == 60_002
    for file in read_files(disk, [b"big"]):
        assert sum(map(len, file.data())) == 200_000_000

    def content():
        yield NewEntry(b"big", size=200 * MIB), [bytes(MIB)] * 200
        yield NewEntry(b"d", "dir", 0o755), []
        for number in range(2000):
            yield NewEntry(b"d/%05d" % number, size=3), [b"abc"]

    write_tree(disk, content())
    assert int(pod.sh("awk '/VmHWM/{print $2}' /proc/1/status")) < ENGINE_MOST_KIB


def test_a_full_disk_is_told_and_left_empty(pod: Client, disk: Target) -> None:
    """Pain 21: a tree that does not fit fails as tool.no_space or too large, and what came of it is gone."""

    def content():
        yield NewEntry(b"d", "dir", 0o555), []
        yield NewEntry(b"d/f", size=4 << 30), (bytes(MIB) for _ in range(4096))

    with pytest.raises(CopyFailed) as failure:
        write_tree(disk, content())
    assert failure.value.code in ("tool.no_space", "tool.too_large")
    assert pod.sh("ls -A /workspace") == ""


def test_a_pod_has_no_stages(disk: Target) -> None:
    with pytest.raises(NotAccepted):
        swap(disk, "s")


# ------------------------------------------------------------------------------------------------------------- holding


def sizes(shared: tuple[LocalDriver, Path], pod: Client) -> tuple[int, ...]:
    """How long the logs of the writers are, asked for by a call that is allowed while all stand still."""
    found = []
    for name in ("log", "forks"):
        answer = pod.call("stat", {"path": name})
        found.append(answer.output["size"] if answer.result.get("kind") == "completed" else -1)
    return tuple(found)


@pytest.fixture
def writers(pod: Client, disk: Target, shared: tuple[LocalDriver, Path]) -> Client:
    """A pod in which processes that earlier calls left behind write and fork without end."""
    for script in (WRITER, FORKER):
        pod.sh(f"setsid bash -c '{script}' > /dev/null 2>&1 &")
    eventually(lambda: min(sizes(shared, pod)) > 0)
    return pod


def grows(shared: tuple[LocalDriver, Path], pod: Client) -> bool:
    before = sizes(shared, pod)
    return bool(eventually(lambda: all(new > old for new, old in zip(sizes(shared, pod), before, strict=True))))


def test_while_a_disk_is_held_nothing_in_the_pod_changes_it(
    writers: Client, disk: Target, shared: tuple[LocalDriver, Path]
) -> None:
    """A version is of one moment: writers and forkers that calls left behind stand still, and then go on."""
    with hold(disk) as held:
        assert held.processes >= 2
        with list_tree(disk) as listing:
            first = list(listing)
        before = sizes(shared, writers)
        files = [(file.path, file.steady) for file in read_files(disk, [b"forks", b"log"])]
        assert files == [(b"forks", True), (b"log", True)]
        with list_tree(disk) as listing:
            assert list(listing) == first
        assert sizes(shared, writers) == before
        refused = writers.bash("echo no")
        assert refused.refusal is not None
        assert refused.refusal["reason"] == "busy"
        assert writers.call("write", {"path": "new"}, b"x").refusal is not None
        with pytest.raises(CopyFailed), hold(disk):
            pass
    assert not held.lost
    assert grows(shared, writers)


def test_what_was_stopped_before_stays_stopped(writers: Client, disk: Target) -> None:
    writers.sh("sleep 1000 & kill -STOP $!; echo $! > /tmp/stopped")
    with hold(disk):
        pass
    state = "awk '/State/{print $2}' /proc/$(cat /tmp/%s)/status"
    assert writers.sh(state % "stopped") == "T"
    assert writers.sh(state % "writer") != "T"


def test_a_client_that_dies_frees_the_pod(
    writers: Client, disk: Target, shared: tuple[LocalDriver, Path], tmp_path: Path
) -> None:
    """A worker killed in the middle of a copy leaves no pod standing still."""
    script = (
        "import sys, time\n"
        "from environments.compute.channel import EngineChannel\n"
        "from environments.compute.copying import Target, hold\n"
        f"with hold(Target(EngineChannel('unix:{writers.path}'), {writers.epoch}, {disk.copy!r}, 1)):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    environment = {"PATH": os.defpath, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"held\n"
        assert writers.bash("true").refusal is not None
        client.send_signal(signal.SIGKILL)
        client.wait()
    assert grows(shared, writers)


def test_a_client_that_is_silent_does_not_hold_for_ever(
    writers: Client, disk: Target, shared: tuple[LocalDriver, Path]
) -> None:
    """A worker that sleeps with its connection open leaves no pod standing still."""
    with writers.open("tree.hold", {"copy": disk.copy, "attempt": 1, "patienceMs": 300}) as sock:
        reply = drain(sock)
    assert json.loads(reply.data)["settled"] is True
    assert reply.code == "tool.interrupted"
    assert grows(shared, writers)


def test_the_next_attempt_frees_what_a_sleeping_one_holds(
    writers: Client, disk: Target, shared: tuple[LocalDriver, Path]
) -> None:
    """E-283: the next attempt frees what a sleeping one holds, and holds it itself."""
    with hold(disk) as held, hold(next_copy(disk)) as second:
        assert second.processes >= 2
    assert held.lost
    assert not second.lost
    assert grows(shared, writers)


def test_a_pod_that_is_held_can_be_stopped(driver: LocalDriver, plane: ControlPlane) -> None:
    """What stands still is asked to end as well, and need not be killed after the grace."""
    driver.apply(spec(plane.url))
    pod = joined(driver, plane)
    pod.sh("setsid bash -c 'trap \"exit 0\" TERM; while :; do sleep 0.1; done' > /dev/null 2>&1 &")
    began = time.monotonic()
    with suppress(Interrupted), hold(Target(EngineChannel(f"unix:{pod.path}"), pod.epoch, "op_stop", 1)):
        pod.call("stop", {"graceMs": 60_000})
        eventually(lambda: not driver.status(NAME).ready)
    assert time.monotonic() - began < 20


MAPPED = """
import mmap, os, time
with open("db", "wb") as file:
    file.write(b"A" * 8192)
with open("db", "r+b") as file:
    pages = mmap.mmap(file.fileno(), 8192)
pages[:5] = b"first"
time.sleep(0.2)  # older than the grain of time stamps
open("dirty", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
pages[:5] = b"later"
open("done", "w").close()
time.sleep(60)
"""


def test_a_store_through_a_mapping_after_a_copy_changes_the_stat(pod: Client, disk: Target) -> None:
    """Pain 13: a page that was dirty when it was copied takes no later store unseen, or it would be lost for good."""
    pod.sh(f"setsid python3 -c '{MAPPED}' > /dev/null 2>&1 &")
    eventually(lambda: pod.bash("test -e dirty").output["exitCode"] == 0)

    def stat_of_db() -> bytes:
        with hold(disk), list_tree(disk) as listing:
            return next(entry.stat for entry in listing if entry.path == b"db")

    before = stat_of_db()
    pod.sh("touch go")
    eventually(lambda: pod.bash("test -e done").output["exitCode"] == 0)
    assert pod.sh("head -c 5 db") == "later"
    assert stat_of_db() != before
