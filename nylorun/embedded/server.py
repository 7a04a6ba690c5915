"""Server: one embedded server over one folder, started, watched and stopped the same way whatever it is.

- `start()` returns when the server answers, and raises ServerFailed with the end of its log when it does not.
- The same folder can be started again after any end, SIGKILL of everything included: what an earlier server of this
  folder left running is ended first, cleanly when it obeys. One folder has at most one server.
- `prepare()` and `ready()` are the halves of `start()`, for a supervisor that spawns and waits by itself.
"""

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from nylorun.embedded.processes import (
    Command,
    Ending,
    end_children,
    end_stranger,
    exited,
    running_in,
    spawn,
    wait_for_an_end,
)

START_SECONDS = 60.0  # recovery after a crash reads the whole write-ahead log
STOP_SECONDS = 5.0
STEP_SECONDS = 0.02


class ServerFailed(RuntimeError):
    """A server did not start; the message holds the end of its log."""


class Server(ABC):
    """One server over `folder`. Not for use by two threads at once."""

    name: ClassVar[str]
    program: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]

    def __init__(self, folder: Path, *, durable: bool, log: Path | None) -> None:
        self.folder = folder.absolute()
        self.durable = durable
        self.log = log or self.folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def data(self) -> Path:
        """The folder the server works in, its process's working folder."""

    @abstractmethod
    def command(self) -> Command:
        """Make what a start needs and say what to run. No server of this folder runs meanwhile."""

    @abstractmethod
    def ready(self, pid: int) -> bool:
        """Whether the server that runs as `pid` answers."""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the last start."""
        if self._process is None:
            raise ServerFailed(f"{self.name} of {self.folder} was not started")
        return self._process

    def prepare(self) -> Command:
        """End what an earlier server of this folder left, then make ready for a new one."""
        self.end_leftovers()
        return self.command()

    def end_leftovers(self) -> int:
        """End every process of an earlier server of this folder; return how many there were."""
        leftovers = running_in(self.data, self.program) if self.data.exists() else []
        for identity in leftovers:  # the oldest first: the parent, which ends the others
            end_stranger(identity, self.stop_signal, STOP_SECONDS)
        return len(leftovers)

    def begin(self) -> None:
        """Spawn without waiting for the first answer."""
        self.stop(0.0)  # reaps what has died; until then a new server would take the dead one for alive
        command = self.prepare()
        with self.log.open("ab") as log:
            self._process = spawn(command, log)

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until the server answers; end it and raise ServerFailed when it does not in time."""
        deadline = time.monotonic() + seconds
        while not self.ready(self.process.pid):
            if exited(self.process) or time.monotonic() > deadline:
                self.stop()
                raise ServerFailed(f"{self.name} of {self.folder} did not start:\n{self._log_end()}")
            wait_for_an_end([self.process.pid], STEP_SECONDS)

    def start(self) -> None:
        self.begin()
        self.wait_ready()

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """End the server: ask, wait at most `grace` seconds, kill. Nothing happens when it does not run."""
        if self._process is not None:
            end_children([Ending(self._process, self.stop_signal, grace)])

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]
