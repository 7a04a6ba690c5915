"""The supervisor over stand-ins: restarts, the order and bound of an end, and what a killed supervisor leaves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nylorun.embedded.parts import Part
from nylorun.embedded.processes import Command, Identity
from nylorun.embedded.supervisor import PartFailed, Supervisor
from tests.embedded.standin import PARENT, PLAIN, STUBBORN, WAITING, part, supervisor, table
from tests.embedded.support import eventually, identity, kill, line_of, running

Started = Callable[[list[Part]], Supervisor]


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def started(tmp_path: Path, lines: list[str]) -> Iterator[Started]:
    """Start a table; whatever the test does, its parts end with the test."""
    made: list[Supervisor] = []

    def start(parts: list[Part]) -> Supervisor:
        watched = supervisor(tmp_path, parts, lines)
        made.append(watched)
        watched.begin({entry.stage for entry in parts})
        watched.wait_ready()
        return watched

    yield start
    for watched in made:
        watched.stop()


def until(watched: Supervisor, done: Callable[[], bool], seconds: float = 15.0) -> None:
    """Let the supervisor work until `done`."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        watched.step(0.05)


def test_a_killed_part_is_started_again(started: Started, lines: list[str]) -> None:
    watched = started([part("one", 0, PLAIN), part("two", 0, PLAIN)])
    killed, other = watched.process("one"), watched.process("two")
    killed.kill()
    until(watched, lambda: "one died (SIGKILL), starting it again now" in lines)
    until(watched, lambda: len([line for line in lines if line.startswith("one ready")]) == 2)
    assert watched.process("one").pid != killed.pid
    assert watched.process("two").pid == other.pid


def test_a_part_that_keeps_dying_is_started_again_after_longer_and_longer_pauses(
    started: Started, lines: list[str]
) -> None:
    watched = started([part("loop", 0, "import sys; sys.exit(3)")])
    until(watched, lambda: len([line for line in lines if "died" in line]) == 4)
    assert [line for line in lines if "died" in line] == [
        "loop died (exit code 3), starting it again now",
        "loop died (exit code 3), starting it again in 0.5 s",
        "loop died (exit code 3), starting it again in 1.0 s",
        "loop died (exit code 3), starting it again in 2.0 s",
    ]


def test_a_part_that_cannot_be_prepared_again_does_not_end_the_others(
    started: Started, lines: list[str], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    sound = part("one", 0, PLAIN)

    def prepare() -> Command:
        if broken.exists():
            raise OSError("no space left")
        return sound.prepare()

    watched = started([Part(name="one", stage=0, prepare=prepare), part("two", 0, PLAIN)])
    broken.touch()
    watched.process("one").kill()
    until(watched, lambda: any("one cannot be started: no space left" in line for line in lines))
    assert identity(watched.process("two").pid).alive()


def test_a_part_that_ends_before_it_is_ready_fails_the_start_with_the_end_of_its_log(started: Started) -> None:
    with pytest.raises(PartFailed, match=r"(?s)bad ended \(exit code 1\).*what went wrong"):
        started([part("bad", 0, "import sys; sys.exit('what went wrong')", shown=Path("/nonexistent"))])


def test_a_start_returns_when_all_its_parts_are_ready(started: Started, lines: list[str], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"import pathlib, signal; pathlib.Path({str(mark)!r}).touch(); signal.pause()"
    started([part("late", 0, code, shown=mark), part("at-once", 1, PLAIN)])
    assert mark.exists()
    assert sorted(line.split()[0] for line in lines) == ["at-once", "late"]


def test_the_end_comes_in_reverse_order_and_within_the_sum_of_the_graces(
    started: Started, lines: list[str], tmp_path: Path
) -> None:
    watched = started(table(tmp_path))
    near, far = (identity(int(pid)) for pid in (tmp_path / "children").read_text().split())
    eventually(lambda: "set" in (tmp_path / "logs/stubborn.log").read_text())
    lines.clear()
    began = time.monotonic()
    watched.stop()
    try:
        assert time.monotonic() - began < 3.0 + 1.0
        assert lines == ["parent ended (SIGTERM)", "stubborn ended (SIGKILL)", "plain ended (SIGTERM)"]
        assert list((tmp_path / "run").iterdir()) == []
        assert not near.alive()  # of the part's process group
        assert far.alive()  # of a session of its own, as a local pod is
    finally:
        kill(far, signal.SIGKILL)


def stop(*stopped: Identity) -> None:
    """Freeze processes and wait until the kernel says that they are."""
    for found in stopped:
        os.kill(found.pid, signal.SIGSTOP)
    for found in stopped:
        eventually(lambda pid=found.pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


def test_parts_that_somebody_stopped_end_as_orderly_as_others_and_leave_nothing(
    started: Started, lines: list[str], tmp_path: Path
) -> None:
    """Otherwise each takes its whole grace, and what is in another session of its stays stopped for ever."""
    child = tmp_path / "child"
    watched = started(
        [part("waiting", 0, WAITING, str(child), PLAIN, grace=10.0, shown=child), part("plain", 1, PLAIN, grace=10.0)]
    )
    below = identity(int(eventually(child.read_text)))
    parts = [identity(watched.process(name).pid) for name in ("waiting", "plain")]
    try:
        stop(below, *parts)
        lines.clear()
        began = time.monotonic()
        watched.stop()
        assert time.monotonic() - began < 5.0
        assert lines == ["plain ended (SIGTERM)", "waiting ended (exit code 0)"]
        assert not below.alive()
    finally:
        kill(below, signal.SIGKILL)


def test_what_a_killed_supervisor_left_is_ended_also_when_somebody_stopped_it(tmp_path: Path) -> None:
    with running(sys.executable, "-c", PLAIN) as left:
        now = identity(left.pid)
        watched = supervisor(tmp_path, [part("one", 0, PLAIN, grace=10.0)], [])
        (tmp_path / "run/one.pid").write_text(f"{now.pid} {now.started}\n")
        stop(now)
        began = time.monotonic()
        watched.end_leftovers()
        assert time.monotonic() - began < 5.0
        assert not now.alive()


def test_what_a_killed_part_leaves_in_its_group_is_killed_before_it_starts_again(
    started: Started, tmp_path: Path
) -> None:
    children = tmp_path / "children"
    first = part("parent", 0, PARENT, str(children), STUBBORN)
    commands = iter([first.prepare(), part("parent", 0, PLAIN).prepare()])
    watched = started(
        [Part(name="parent", stage=0, prepare=lambda: next(commands), ready=lambda pid: children.exists())]
    )
    near, far = (identity(int(pid)) for pid in children.read_text().split())
    old = watched.process("parent")
    try:
        old.kill()
        until(watched, lambda: old.returncode is not None)
        assert not near.alive()
        assert far.alive()
    finally:
        kill(far, signal.SIGKILL)


def test_a_killed_supervisor_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    pods: list[Identity] = []
    try:
        with running(*STANDIN, str(tmp_path)) as first:
            pods.append(wait_for_standin(first, tmp_path))
            left = parts_of(tmp_path)
            near = identity(int((tmp_path / "children").read_text().split()[0]))
            (tmp_path / "children").unlink()
        eventually(lambda: not left["plain"].alive())  # the kernel asked it to end
        assert left["stubborn"].alive()  # it was asked, and did not obey

        with running(*STANDIN, str(tmp_path)) as second:
            pods.append(wait_for_standin(second, tmp_path))
            assert not left["stubborn"].alive()
            assert not near.alive()
            assert pods[0].alive()
            assert all(found.alive() for found in parts_of(tmp_path).values())
    finally:
        supervisor(tmp_path, table(tmp_path), []).end_leftovers()
        for pod in pods:
            kill(pod, signal.SIGKILL)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_number_that_was_used_again_is_left_alone(tmp_path: Path) -> None:
    with running(sys.executable, "-c", PLAIN) as stranger:
        watched = supervisor(tmp_path, [part("one", 0, PLAIN)], [])
        now = identity(stranger.pid)
        (tmp_path / "run/one.pid").write_text(f"{now.pid} {now.started}0\n")
        watched.end_leftovers()
        assert now.alive()
        assert not (tmp_path / "run/one.pid").exists()


STANDIN = (sys.executable, "-m", "tests.embedded.standin")


def wait_for_standin(process: subprocess.Popen[str], folder: Path) -> Identity:
    """Wait until the stand-ins run and the stubborn one has become deaf; the process that stands for a pod."""
    while (line := line_of(process)) != "all ready\n":
        assert line, "the supervisor ended"
    eventually(lambda: "set" in (folder / "logs/stubborn.log").read_text())
    return identity(int((folder / "children").read_text().split()[1]))


def parts_of(folder: Path) -> dict[str, Identity]:
    found = {path.stem: path.read_text().split() for path in (folder / "run").glob("*.pid")}
    return {name: Identity(int(pid), started) for name, (pid, started) in found.items()}
