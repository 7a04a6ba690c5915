"""Supervisor: starts the parts of a process table, restarts what dies, ends everything in reverse order.

- A part that dies is started again at once; one that keeps dying within SETTLED_SECONDS of its start is started again
  after a pause that doubles up to PAUSE_MAX_SECONDS. No part is ever given up.
- `stop()` ends every part within the sum of the graces of the stages, each stage together, asked first, then killed.
- Every part is a child leashed to the thread that runs the supervisor: when that is killed, they are asked to end by
  the kernel. What is slow to obey, or lost its leash by changing its user, is found by the next start through
  `run/<name>.pid` and ended before anything starts.
- A process that a part put into another session (the supervisor of a local pod) is not touched.
- The output of a part goes to `logs/<name>.log`; every event is one line given to `say`.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from nylorun.embedded.parts import Part
from nylorun.embedded.processes import (
    Command,
    Ending,
    Identity,
    end_children,
    end_stranger,
    exited,
    identify,
    kill_strays,
    let_run,
    spawn,
    wait_for_an_end,
)

READY_SECONDS = 120.0  # a slow machine that is busy with other work still comes up
SETTLED_SECONDS = 10.0
PAUSE_MAX_SECONDS = 30.0
POLL_SECONDS = 0.1
LOG_MAX_BYTES = 16 * 1024 * 1024


class PartFailed(RuntimeError):
    """A part did not become ready; the message holds the end of its log."""


@dataclass
class _Child:
    """What the supervisor knows of one part: its process, and how its restarts went."""

    part: Part
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    due: float = 0.0
    announced: bool = False


class Supervisor:
    """Runs `table`; `run` and `logs` are existing folders that belong to this supervisor alone."""

    def __init__(self, table: Iterable[Part], *, run: Path, logs: Path, say: Callable[[str], None]) -> None:
        self._children = [_Child(part) for part in sorted(table, key=lambda part: part.stage)]
        self._run = run
        self._logs = logs
        self._say = say
        self._mark = ("NYLORUN_RUN", str(run.absolute()))

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """The present process of a part; PartFailed when it has none."""
        for child in self._children:
            if child.part.name == name and child.process is not None:
                return child.process
        raise PartFailed(f"{name} does not run")

    def end_leftovers(self) -> None:
        """End what a killed supervisor of the same folders left running, in the order of an orderly end."""
        for child in reversed(self._children):
            left = self._left_by_dead(child.part)
            if left is not None:
                self._say(f"{child.part.name} of an earlier start still ran (pid {left.pid}), ending it")
                end_stranger(left, child.part.stop_signal, child.part.grace)
            self._kill_strays(child.part)
            child.part.end_leftovers()
            self._pid_file(child.part).unlink(missing_ok=True)

    def begin(self, stages: Iterable[int]) -> None:
        """Start the parts of `stages`, side by side, without waiting for them."""
        wanted = set(stages)
        for child in self._children:
            if child.part.stage in wanted:
                self._spawn(child)

    def wait_ready(self) -> None:
        """Wait until every part that was started is ready; PartFailed when one ends or takes too long."""
        while waiting := [child for child in self._children if child.process is not None and not child.announced]:
            for child in waiting:
                self._look_at_start(child)
            wait_for_an_end([self.process(child.part.name).pid for child in waiting], POLL_SECONDS)

    def watch(self) -> None:
        """Restart what dies, for ever. Ends by an exception, such as the one a signal handler raises."""
        while True:
            self.step(self._until_next())

    def step(self, seconds: float) -> None:
        """Wait at most `seconds` for something to die or to become due, then act on it."""
        wait_for_an_end([child.process.pid for child in self._children if child.process is not None], seconds)
        for child in self._children:
            if child.process is not None:
                self._look_after(child, child.process)
            elif child.due and time.monotonic() >= child.due:
                self._restart(child)

    def stop(self) -> None:
        """End every part: the highest stage first. What was never started is left alone."""
        # All of them now: one of a high stage cannot end while it waits for one of a low stage that somebody stopped.
        let_run(child.process.pid for child in self._children if child.process is not None)
        for stage in sorted({child.part.stage for child in self._children}, reverse=True):
            running = [(c.part, c, c.process) for c in self._children if c.part.stage == stage and c.process]
            end_children([Ending(process, part.stop_signal, part.grace) for part, _, process in running])
            for part, child, process in running:
                self._say(f"{part.name} ended ({_how(process)})")
                self._pid_file(part).unlink(missing_ok=True)
                child.process = None
                child.due = 0.0

    def _spawn(self, child: _Child) -> None:
        command = _marked(child.part.prepare(), self._mark)
        with _log(self._logs / f"{child.part.name}.log") as log:
            child.process = spawn(command, log)
        child.started = time.monotonic()
        child.announced = False
        identity = identify(child.process.pid)
        if identity is not None:
            self._pid_file(child.part).write_text(f"{identity.pid} {identity.started}\n")

    def _look_at_start(self, child: _Child) -> None:
        process = self.process(child.part.name)
        if child.part.ready(process.pid):
            self._announce(child, process)
            return
        overdue = time.monotonic() - child.started > READY_SECONDS
        if overdue or exited(process):
            what = f"is not ready after {READY_SECONDS:.0f} s" if overdue else f"ended ({_how(process)})"
            raise PartFailed(f"{child.part.name} {what}; the end of its log:\n{self._log_end(child.part)}")

    def _look_after(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        if exited(process):
            self._bury(child, process)
        elif not child.announced and child.part.ready(process.pid):
            self._announce(child, process)

    def _announce(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        child.announced = True
        self._say(f"{child.part.name} ready (pid {process.pid}, {time.monotonic() - child.started:.1f} s)")

    def _bury(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        """Kill what is left of a dead part's group and set the time of its next start."""
        end_children([Ending(process, child.part.stop_signal, 0.0)])
        settled = time.monotonic() - child.started > SETTLED_SECONDS
        child.failures = 1 if settled else child.failures + 1
        pause = 0.0 if child.failures == 1 else min(PAUSE_MAX_SECONDS, 0.5 * 2.0 ** (child.failures - 2))
        child.process = None
        child.due = time.monotonic() + pause
        when = f"in {pause:.1f} s" if pause else "now"
        self._say(f"{child.part.name} died ({_how(process)}), starting it again {when}")
        if not pause:
            self._restart(child)

    def _restart(self, child: _Child) -> None:
        """Start a dead part again. What fails here is a failure of the part, not of the supervisor."""
        try:
            self._spawn(child)
        except (OSError, RuntimeError) as error:
            child.failures += 1
            child.due = time.monotonic() + PAUSE_MAX_SECONDS
            self._say(f"{child.part.name} cannot be started: {error}; trying again in {PAUSE_MAX_SECONDS:.0f} s")

    def _until_next(self) -> float:
        """How long nothing is to be done unless something dies."""
        if any(child.process is not None and not child.announced for child in self._children):
            return POLL_SECONDS
        due = [child.due for child in self._children if child.process is None and child.due]
        return max(0.0, min(due) - time.monotonic()) if due else 3600.0

    def _left_by_dead(self, part: Part) -> Identity | None:
        """The process of the pid file, when it is still the one that was written down."""
        with suppress(FileNotFoundError, ValueError):
            pid, started = self._pid_file(part).read_text().split()
            identity = Identity(int(pid), started)
            return identity if identity.alive() else None
        return None

    def _kill_strays(self, part: Part) -> None:
        """Kill what a dead leader left in its process group."""
        with suppress(FileNotFoundError, ValueError):
            kill_strays(int(self._pid_file(part).read_text().split()[0]), "=".join(self._mark))

    def _pid_file(self, part: Part) -> Path:
        return self._run / f"{part.name}.pid"

    def _log_end(self, part: Part) -> str:
        return (self._logs / f"{part.name}.log").read_text(errors="replace")[-3000:]


def _marked(command: Command, mark: tuple[str, str]) -> Command:
    """The command with the mark in its environment by which strays are told."""
    name, value = mark
    return replace(command, env={**(os.environ if command.env is None else command.env), name: value})


def _how(process: subprocess.Popen[bytes]) -> str:
    """How a process ended, in words."""
    code = process.wait()
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


@contextmanager
def _log(path: Path) -> Iterator[IO[bytes]]:
    """The log to append to. A large one is set aside first, in place of the one set aside before."""
    if path.exists() and path.stat().st_size > LOG_MAX_BYTES:
        path.replace(path.with_suffix(".log.1"))
    with path.open("ab") as file:
        yield file
