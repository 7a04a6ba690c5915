"""Giving up rights: what a process that runs strangers' commands keeps, and what it can never have again.

A reader may rely on:
  * ``become`` leaves no way back to the user that started us; of root's powers it keeps at most the one to ``chroot``;
  * after ``enter`` the process sees one workspace: its root folder when it may ``chroot``, Landlock where the kernel
    has it, and no sockets, programs or processes where the machine has a known call filter. ``Cage`` says which hold;
  * memory, the size of one file and the number of handles are limited in any case.
Memory is counted as writable private memory above what the process has when it enters, in MiB.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from contextlib import suppress
from dataclasses import dataclass

from environments.compute.virtual import landlock, seccomp

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 4, 8, 38
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SYS_CHROOT = 18
_SIGKILL = 9

MIB = 1 << 20
MOST_HANDLES = 1024
_MAPPED_SLACK_MIB = 1024  # address space that costs no memory: reserves of the allocator, mapped program text


@dataclass(frozen=True, slots=True)
class Cage:
    """What holds this process. ``path`` is its workspace, ``io`` a handle of its counters (``None``: not readable)."""

    path: str
    io: int | None
    rooted: bool
    landlock: int
    filtered: bool


def become(user: int, *, keep_chroot: bool) -> None:
    """Turn from root into ``user`` and the group of the same number, for good. Who is not root stays who he is."""
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.geteuid() != 0:
        return
    signal_of_parent = _signal_of_parent()
    _LIBC.prctl(_PR_SET_KEEPCAPS, int(keep_chroot), 0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _capabilities(1 << _CAP_SYS_CHROOT if keep_chroot else 0)
    set_dumpable(True)  # else /proc/self would belong to root; ``enter`` ends it
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal_of_parent, 0, 0, 0)  # a change of user clears it


def _signal_of_parent() -> int:
    """The signal this process gets when the one that made it ends; 0 for none."""
    kept = ctypes.c_int(0)
    _LIBC.prctl(_PR_GET_PDEATHSIG, ctypes.byref(kept), 0, 0, 0)
    return kept.value


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that made it is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def set_dumpable(value: bool) -> None:
    """Whether other processes of this user may look into this one."""
    _LIBC.prctl(_PR_SET_DUMPABLE, int(value), 0, 0, 0)


def enter(home: int, workspace: int, memory_mib: int) -> Cage:
    """Shut this process in with one workspace; ``home`` holds it, both are handles. Raises ``OSError``."""
    io = _own_counters()
    _step_forward_for_the_oom_killer()
    _limit(memory_mib)
    path = _chroot(home) or os.readlink(f"/proc/self/fd/{workspace}")
    rooted = path == _INSIDE
    _capabilities(0)
    set_dumpable(False)
    confined = landlock.confine([workspace])
    return Cage(path=path, io=io, rooted=rooted, landlock=confined, filtered=seccomp.install())


_INSIDE = "/workspace"


def _chroot(home: int) -> str | None:
    try:
        os.fchdir(home)
        os.chroot(".")
    except PermissionError:
        return None
    os.chdir("/")
    return _INSIDE


def _own_counters() -> int | None:
    try:
        return os.open("/proc/self/io", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _step_forward_for_the_oom_killer() -> None:
    """When the host runs out of memory, a workspace dies before the server does."""
    with suppress(OSError):
        handle = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(handle, b"700")
        os.close(handle)


def _limit(memory_mib: int) -> None:
    sizes = _sizes()
    _set(resource.RLIMIT_DATA, sizes["VmData"] + memory_mib * MIB)
    _set(resource.RLIMIT_AS, sizes["VmSize"] + (memory_mib + _MAPPED_SLACK_MIB) * MIB)
    _set(resource.RLIMIT_NOFILE, MOST_HANDLES)
    _set(resource.RLIMIT_CORE, 0)


def _set(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (value, value))


def _sizes() -> dict[str, int]:
    """Sizes of this process in bytes."""
    sizes = {"VmData": 64 * MIB, "VmSize": 512 * MIB}
    with suppress(OSError):
        handle = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        for line in os.read(handle, 16_384).decode().splitlines():
            name, _, value = line.partition(":")
            if name in sizes:
                sizes[name] = int(value.split()[0]) * 1024
        os.close(handle)
    return sizes


def _capabilities(mask: int) -> None:
    head = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _LIBC.capset(head, struct.pack("=IIIIII", mask, mask, 0, 0, 0, 0))
