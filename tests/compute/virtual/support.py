"""A real virtual Engine in its own process, and calls to it through the channel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from environments.compute.channel import EngineChannel, read_file, run_bash
from environments.compute.contract import Answer

REPOSITORY = Path(__file__).resolve().parents[3]
LIMITS = {"memoryMib": 128, "diskBytes": 64 << 20}


def eventually(look: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Ask ``look`` until it answers something true; gives that."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        pause.wait(0.01)
    return found


class Server:
    """One server process over one folder; can be started again over the same one."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.root = folder / "workspaces"
        self.socket = folder / "run" / "engine.sock"
        self._options = options
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "environments.compute.virtual.server"]
        command += ["--socket", str(self.socket), "--root", str(self.root), *self._options]
        environment = {"PATH": os.defpath, "PYTHONPATH": str(REPOSITORY)}
        self.process = subprocess.Popen(command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(number)
        status = self.process.wait(timeout=10)
        self.process.stdout.close()
        return status

    @property
    def channel(self) -> EngineChannel:
        return EngineChannel(f"unix:{self.socket}", connect_timeout=5)

    def workspace(self, **limits: int) -> Workspace:
        return Workspace(self.channel, str(uuid.uuid4()), {**LIMITS, **limits})

    def descendants(self) -> list[int]:
        """The zygote first, then the workspace processes."""
        assert self.process is not None
        found, ahead = [], [self.process.pid]
        while ahead:
            children = _children(ahead.pop(0))
            found += children
            ahead += children
        return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


class Workspace:
    """One workspace, and the tools on it."""

    def __init__(self, channel: EngineChannel, uid: str, limits: dict[str, int]) -> None:
        self.channel = channel
        self.uid = uid
        self.limits = limits

    def call(self, op: str, args: dict[str, Any] | None = None, **options: Any) -> Answer:
        options = {"time_limit_s": 20.0, "call_id": f"call-{uuid.uuid4()}", **options}
        return self.channel.call(op, args or {}, epoch=0, workspace=self.uid, limits=self.limits, **options)

    def bash(self, command: str, **options: Any) -> dict[str, Any]:
        """The output of a command that completed."""
        answer = self.try_bash(command, **options)
        assert answer.output is not None, answer
        return dict(answer.output)

    def try_bash(self, command: str, **options: Any) -> Answer:
        options = {"timeout_ms": 10_000, "call_id": f"call-{uuid.uuid4()}", **options}
        return run_bash(self.channel, command, epoch=0, workspace=self.uid, limits=self.limits, **options)

    def write(self, path: str, content: bytes, **args: Any) -> Answer:
        return self.call("write", {"path": path, "mode": "0644", "createParents": True, **args}, body=content)

    def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> Answer:
        return read_file(
            self.channel,
            path,
            call_id=f"call-{uuid.uuid4()}",
            epoch=0,
            offset=offset,
            limit=limit,
            time_limit_s=20.0,
            workspace=self.uid,
            limits=self.limits,
        )


@contextmanager
def background(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run ``work`` beside the test; the list holds what it gave or raised once the block is left."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(timeout=30)
        assert not thread.is_alive()
