"""Processes of the host, found again without ever mistaking one for another.

A reader may rely on:
  * a process is named by pid *and* start time, so a pid that was given to somebody else is never taken for ours;
  * a zombie counts as gone;
  * every process of a pod that lives outside it (supervisor, bwrap, its child, the Engine) carries the pod's marker as
    one whole argument (and its name as another, for people),
    from before its first instruction to its end; ``sweep`` ends when none is left. What runs inside
    dies with the Engine, its PID 1. So nothing outlives a sweep, whatever was killed half-way through a start.

Standard library only, and of that only what starts fast: the supervisor loads this file.
"""

from __future__ import annotations

import os
import time

MARKER = "nylorun-pod="
SWEEP_SECONDS = 10.0
SWEEP_PAUSE = 0.002


def marker(pod_uid: str) -> str:
    """The argument by which the processes of the pod ``pod_uid`` are known."""
    return MARKER + pod_uid


def start_time(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot; ``None`` when there is no such process or only its zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int | None, started: int | None) -> bool:
    """Whether the very process that had ``pid`` and started then still runs."""
    return pid is not None and started is not None and start_time(pid) == started


def marked(mark: str) -> list[int]:
    """All processes that carry ``mark`` as an argument of their own, this one left out."""
    wanted, own = b"\0" + mark.encode() + b"\0", os.getpid()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != own and _carries(pid, wanted)]


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            return wanted in file.read(65536)
    except OSError:
        return False


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone is as good as killed."""
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return


class NotSwept(Exception):
    """A process would not end in time: it hangs in the kernel, or it is not ours to kill."""


def sweep(mark: str, groups: list[str]) -> None:
    """End every process that carries ``mark`` or is in one of the cgroup folders ``groups``, and remove the groups.

    Idempotent. Raises :class:`NotSwept` when something is left after ``SWEEP_SECONDS``.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    for group in groups:
        forbid_forks(group)
    while _sweep_once(mark, groups):
        if time.monotonic() > deadline:
            raise NotSwept(f"processes of {mark} do not end")
        time.sleep(SWEEP_PAUSE)  # noqa: TID251 - the kernel tells nobody when a process that is no child has gone


def _sweep_once(mark: str, groups: list[str]) -> bool:
    """Kill whom we find; whether something is left, a group that is not empty yet included."""
    found = marked(mark)
    for group in groups:
        found += members(group)
    for pid in found:
        kill(pid)
    left = [group for group in groups if not _remove_group(group)]
    return bool(found or left)


def forbid_forks(group: str) -> None:
    """Where the group counts processes: let no new one be born while the old ones are killed."""
    try:
        with open(f"{group}/pids.max", "w", encoding="ascii") as file:
            file.write("0")
    except OSError:
        return


def members(group: str) -> list[int]:
    """The processes in a cgroup folder; none when it does not exist."""
    try:
        with open(f"{group}/cgroup.procs", "rb", buffering=0) as file:
            return [int(line) for line in file.read(1 << 20).split()]
    except OSError:
        return []


def _remove_group(group: str) -> bool:
    try:
        os.rmdir(group)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
