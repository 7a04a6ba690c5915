"""What the tests of this folder share: waiting for a condition, and processes seen from outside."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from nylorun.embedded.processes import Identity, identify, wait_for_an_end
from nylorun.embedded.server import Server

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
S = TypeVar("S", bound=Server)


def plain_environment() -> dict[str, str]:
    """The environment without what names servers, secrets or settings: a test run sets these for itself."""
    ours = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_", "NYLORUN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def eventually(look: Callable[[], T], seconds: float = 15.0) -> T:
    """The first truthy answer of `look`; an AssertionError after `seconds` without one."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {look}"
        wait_for_an_end([], 0.02)
    return answer


@contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, its output readable by line; killed at the end of the block."""
    process = subprocess.Popen(
        argv, cwd=ROOT, env=plain_environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line it prints; empty when it has ended."""
    assert process.stdout is not None
    return process.stdout.readline()


def identity(pid: int) -> Identity:
    """The identity of a process that runs."""
    found = identify(pid)
    assert found is not None, f"no process {pid}"
    return found


def uid_of(pid: int) -> int:
    """The user a process runs as."""
    return os.stat(f"/proc/{pid}").st_uid


def kill(found: Identity, number: int) -> None:
    """Signal a process that may have ended."""
    if found.alive():
        with suppress(ProcessLookupError):
            os.kill(found.pid, number)


@contextmanager
def closing_server(server: S) -> Iterator[S]:
    """Stop the server at the end of the block."""
    try:
        yield server
    finally:
        server.stop()
