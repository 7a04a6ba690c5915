"""The server's hold on the zygote: asks it for processes, hears of their deaths.

A reader may rely on:
  * the zygote is started from a clean environment and gets two handles, the root and its orders, and nothing else of
    ours;
  * a ``Process`` that died has ``died`` set and its ``status``; one that lives can be killed, any number of times;
  * when the zygote itself is gone, everything it made is gone with it, and ``lost`` is called once: there is no going
    on.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from environments.compute.virtual import control

_REPORT_BYTES = 256
SPARES = 1  # made ahead: a new workspace does not wait for a fork
CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP})


@dataclass(eq=False, slots=True)
class Process:
    """One process, at first nobody's and then one workspace's; ``control`` is the server's end of its socket."""

    number: int
    control: socket.socket
    uid: str = ""
    memory_mib: int = 0
    slot: int = 0
    died: threading.Event = field(default_factory=threading.Event)
    status: int = 0
    idle_since: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether it is alive and waits for a call: one that waits says nothing, one that is gone has hung up."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        return not self.died.is_set() and not poll.poll(0)

    @property
    def crashed(self) -> int | None:
        """The signal by which it ended itself: out of memory, or a fault in what it ran. ``None`` for any other end."""
        number = os.WTERMSIG(self.status) if self.died.is_set() and os.WIFSIGNALED(self.status) else 0
        return number if number in CRASHES else None


class Hatchery:
    """Starts the zygote and speaks with it."""

    def __init__(self, root: int, user: int, lost: Callable[[], None]) -> None:
        self._lost = lost
        self._processes: dict[int, Process] = {}
        self._spares: list[Process] = []
        self._numbers = 0
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._zygote = _start(root, theirs.fileno(), user)
        threading.Thread(target=self._hear, name="deaths", daemon=True).start()
        with suppress(OSError), self._lock:  # one that does not start is noticed by ``wait_until_ready``
            self._spares = [self._make() for _ in range(SPARES)]

    def wait_until_ready(self, seconds: float) -> bool:
        """Wait until the zygote has loaded what it needs; ``False`` when it does not come to that."""
        return self._ready.wait(seconds) and self._zygote.poll() is None

    def spawn(self, uid: str, memory_mib: int, slot: int, ledger: int, stage: str | None = None) -> Process:
        """A process for a workspace, or for a stage of it; it takes calls on its ``control`` at once.

        Raises ``OSError``.
        """
        process = self._spare()
        process.uid, process.memory_mib, process.slot = uid, memory_mib, slot
        order = {"workspace": uid, "memoryMib": memory_mib, "slot": slot, "stage": stage}
        socket.send_fds(process.control, [control.WORKSPACE + json.dumps(order).encode()], [ledger])
        return process

    def _spare(self) -> Process:
        """A process that is nobody's yet; others are made in its place while it goes to work."""
        with self._lock:
            living = [process for process in self._spares if process.waits]
            process = living.pop(0) if living else self._make()
            while len(living) < SPARES:
                living.append(self._make())
            self._spares = living
        return process

    def _make(self) -> Process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._numbers += 1
            process = self._processes[self._numbers] = Process(self._numbers, ours)
            socket.send_fds(self._orders, [json.dumps({"spawn": process.number}).encode()], [theirs.fileno()])
        return process

    def kill(self, process: Process) -> None:
        """End a process at once; one that is gone already is left alone."""
        with suppress(OSError), self._lock:
            self._orders.send(json.dumps({"kill": process.number}).encode())

    def close(self) -> None:
        """End the zygote and all it made."""
        self._zygote.kill()
        self._zygote.wait()

    def _hear(self) -> None:
        while message := self._next_report():
            report = json.loads(message)
            if "ready" in report:
                self._ready.set()
                continue
            with self._lock:
                process = self._processes.pop(report["dead"], None)
            if process is not None:
                process.status = report["status"]
                process.died.set()
        self._zygote.wait()
        self._ready.set()
        self._lost()

    def _next_report(self) -> bytes:
        try:
            return self._orders.recv(_REPORT_BYTES)
        except OSError:
            return b""


def _start(root: int, orders: int, user: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "environments.compute.virtual.zygote"]
    command += ["--root", str(root), "--orders", str(orders), "--user", str(user)]
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "LC_ALL": "C.UTF-8",
        "MALLOC_ARENA_MAX": "2",
    }
    return subprocess.Popen(command, env=environment, pass_fds=(root, orders), stdin=subprocess.DEVNULL, cwd="/")
