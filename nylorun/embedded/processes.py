"""Processes: start one on a leash, know one again, end one for good.

- A started process has its own session and process group, so a Ctrl-C in the terminal reaches the parent alone.
- It is leashed: when the thread that started it ends, SIGKILL included, the kernel sends it `death_signal`. Start
  processes from a thread that lives as long as they should, which is the main thread of a supervisor.
- A process is known again by `Identity`: its number, the boot and the tick it started at. A number alone is used again.
- To end a process is to ask with a signal, wait at most `grace` seconds, then kill its whole process group. What was
  stopped (SIGSTOP) is let run before: it hears no request, and who waits for it cannot obey one.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LEASH = Path(__file__).with_name("leash.py")


@dataclass(frozen=True)
class Command:
    """What to run, and as whom. `uid` None keeps the user of the caller, `env` None its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    uid: int | None = None
    pass_fds: tuple[int, ...] = ()
    death_signal: signal.Signals = signal.SIGTERM
    text: str = ""  # its standard input


@dataclass(frozen=True)
class Identity:
    """One process of one boot. Two identities are equal only when they name the same process."""

    pid: int
    started: str

    def alive(self) -> bool:
        """Whether this very process still runs. A zombie no longer runs."""
        return identify(self.pid) == self


@dataclass(frozen=True)
class Ending:
    """How to end one child: the signal that asks it, and the seconds it has to obey."""

    process: subprocess.Popen[bytes]
    ask: signal.Signals
    grace: float


def identify(pid: int) -> Identity | None:
    """The identity of a running process; None when there is none of that number, or only a zombie."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return Identity(pid, f"{_boot()}:{fields[19]}")


def spawn(command: Command, log: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `command` on its leash, its output going to `log`. The leash is tied to the thread that calls."""
    uid = os.geteuid() if command.uid is None else command.uid
    leash = (sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), str(int(command.death_signal)), str(uid))
    with tempfile.TemporaryFile() as text:
        text.write(command.text.encode())
        text.seek(0)
        return subprocess.Popen(
            (*leash, *command.argv),
            env=command.env,
            cwd=command.cwd,
            stdin=text,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=command.pass_fds,
            umask=0o077,
        )


def exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child has ended. It is not reaped, so that its number still names its process group."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_for_an_end(pids: Iterable[int], seconds: float) -> None:
    """Return when one of the processes has ended, which it may have done before, or after `seconds`."""
    handles: list[int] = []
    try:
        for pid in pids:
            handles.append(os.pidfd_open(pid))  # readable at the end, also for the child of another
        select.select(handles, [], [], max(0.0, seconds))
    except ProcessLookupError:
        return
    finally:
        for handle in handles:
            os.close(handle)


def let_run(pids: Iterable[int]) -> None:
    """Continue what is stopped among these processes and all below them, whatever session they are in."""
    found = set(pids)
    parents = {pid: int(fields[1]) for pid in _pids() if (fields := _stat(pid)) is not None}
    wanted: set[int] = set()
    while found:
        wanted |= found
        found = {pid for pid, parent in parents.items() if parent in wanted} - wanted
    for pid in wanted:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def end_children(endings: Sequence[Ending]) -> None:
    """End children together, each with its process group, and reap them."""
    running = [ending for ending in endings if ending.process.returncode is None]
    asked = [ending for ending in running if not exited(ending.process)]
    let_run([ending.process.pid for ending in asked])
    for ending in asked:
        ending.process.send_signal(ending.ask)
    began = time.monotonic()
    for ending in running:
        while not exited(ending.process) and (left := began + ending.grace - time.monotonic()) > 0:
            wait_for_an_end([ending.process.pid], left)
        _kill_group(ending.process.pid)  # before it is reaped: until then the number is not used again
        ending.process.wait()


def end_stranger(identity: Identity, ask: signal.Signals, grace: float) -> None:
    """End a process that is not a child, and its process group when it leads one."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        if identity.alive():  # looked at with the handle held: the handle cannot come to name another process
            leads = os.getpgid(identity.pid) == identity.pid
            let_run([identity.pid])
            signal.pidfd_send_signal(handle, ask)
            select.select([handle], [], [], grace)
            if leads:
                _kill_group(identity.pid)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], grace)
    except ProcessLookupError:  # it has ended
        return
    finally:
        os.close(handle)


def kill_strays(group: int, mark: str) -> None:
    """Kill the members of a process group whose leader is gone, those with `mark` (NAME=value) in their environment.

    The mark guards against a number that was used again.
    """
    if identify(group) is not None:
        return
    for pid in _pids():
        fields = _stat(pid)
        if fields is not None and int(fields[2]) == group and _carries(pid, mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def running_in(folder: Path, program: str) -> list[Identity]:
    """The processes named `program` whose working folder is `folder`, oldest first: the servers of that folder."""
    found = [identity for pid in _pids() if _runs(pid, folder, program) and (identity := identify(pid))]
    return sorted(found, key=lambda identity: int(identity.started.rsplit(":", 1)[1]))


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name: state, ppid, pgrp, ...; None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _runs(pid: int, folder: Path, program: str) -> bool:
    try:
        executable = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        return Path(executable).name == program and os.path.samefile(f"/proc/{pid}/cwd", folder)
    except OSError:  # ended meanwhile, or another user's
        return False


def _carries(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
