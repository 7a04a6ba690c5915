"""Starts that are cut short: whatever is killed, and when, a delete afterwards leaves nothing on the host."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from environments.compute.contract import NoAnswer
from environments.compute.local import host
from environments.compute.local.driver import LocalDriver
from environments.compute.local.places import Place
from environments.compute.local.processes import start_time
from tests.compute.local.helpers import (
    NAME,
    ControlPlane,
    eventually,
    joined,
    loops,
    our_groups,
    our_processes,
    spec,
)

ROUNDS = 16


def processes_of_user(uid: int) -> list[int]:
    """Every process of a host user, whatever it calls itself; zombies, which whoever adopted them reaps, left out."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid and start_time(int(entry.name)) is not None:
                found.append(int(entry.name))
    return found


def outside_user(driver: LocalDriver) -> int | None:
    bearer = Place(driver._root, NAME).bearer
    return bearer.stat().st_uid if os.geteuid() == 0 and bearer.exists() else None


def assert_clean(driver: LocalDriver, uid: int | None) -> None:
    driver.delete(NAME)
    assert driver.status(NAME).gone
    assert our_processes() == []
    assert our_groups() == []
    eventually(lambda: not loops(driver._root))
    assert uid is None or processes_of_user(uid) == []


def the_bwrap() -> int | None:
    """The bubblewrap of the pod that is starting, as soon as there is one."""
    for pid in our_processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"bwrap\0"):
                return pid
    return None


def kill_one_at(milliseconds: float, chance: random.Random) -> None:
    """Wait, then SIGKILL one of the processes of the pod that is starting."""
    threading.Event().wait(milliseconds / 1000)
    found = eventually(our_processes)
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(found), signal.SIGKILL)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_start_cut_short_at_any_moment_leaves_nothing(driver: LocalDriver, plane: ControlPlane, seed: int) -> None:
    """E-112: bubblewrap killed in its first milliseconds leaves a child that waits for ever; it is found and ended."""
    driver.readiness()
    chance = random.Random(seed)
    killer = threading.Thread(target=kill_one_at, args=(chance.uniform(0, 50), chance))
    killer.start()
    with contextlib.suppress(NoAnswer):
        driver.apply(spec(plane.url))
    killer.join(20)
    assert_clean(driver, outside_user(driver))


def test_after_a_start_cut_short_the_next_one_works(driver: LocalDriver, plane: ControlPlane) -> None:
    """Pain 2: a failed wake leaves the volume intact, and the next wake works."""
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo kept > file")
    driver.apply(spec(plane.url, rev=2, mode="Suspended"))
    eventually(lambda: driver.status(NAME).suspended)
    killer = threading.Thread(target=lambda: os.kill(eventually(the_bwrap), signal.SIGKILL))
    killer.start()
    with contextlib.suppress(NoAnswer):
        driver.apply(spec(plane.url, rev=3, join_token=None))
    killer.join(20)
    eventually(lambda: driver.status(NAME).pod_uid is None)
    driver.apply(spec(plane.url, rev=3, join_token=None))
    assert joined(driver, plane).sh("cat file") == "kept"
    assert len(our_processes()) == 3


@pytest.mark.parametrize("milliseconds", [0, 10, 30])
def test_a_worker_killed_while_it_applies_leaves_nothing_that_the_next_apply_does_not_find(
    driver: LocalDriver, plane: ControlPlane, milliseconds: int
) -> None:
    """Pain 8 and 40: SIGKILL of the applying process; whoever applies next makes exactly one pod."""
    code = (
        "import pathlib, sys\n"
        "from environments.compute.local.driver import LocalDriver\n"
        "from tests.compute.local.helpers import INSTALLATION, spec\n"
        "driver = LocalDriver(pathlib.Path(sys.argv[1]), INSTALLATION)\n"
        "driver.readiness()\n"
        "print('now', flush=True)\n"
        "driver.apply(spec(sys.argv[2], name=sys.argv[3]))\n"
    )
    command = [sys.executable, "-c", code, str(driver._root), plane.url, NAME]
    with subprocess.Popen(command, cwd=host.CODE_ROOT, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        threading.Event().wait(milliseconds / 1000)
        worker.kill()
    driver.apply(spec(plane.url))
    joined(driver, plane)
    assert len(our_processes()) == 3
    assert_clean(driver, outside_user(driver))
