"""The system calls a sandbox may not make, as a BPF program for ``bwrap --seccomp``.

A reader may rely on:
  * calls that reach out of a sandbox or into rarely used kernel code (key rings, BPF, namespaces and mounts, tracing,
    modules, io_uring, userfaultfd, perf) fail with EPERM; everything a program needs for its own work is allowed;
  * ``clone`` may make no namespaces; ``clone3``, whose flags no filter can read, says ENOSYS, at which libraries use
    ``clone``;
  * sockets are of the families Unix, IPv4, IPv6 and route netlink; others fail with EAFNOSUPPORT;
  * input can be pushed into no terminal (TIOCSTI, TIOCLINUX);
  * code of another architecture than the kernel's own (32 bit, x32) is ended or refused.
Pure: bytes out of a table.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

LD_WORD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCH, ARG0, ARG1, ARG2 = 0, 4, 16, 24, 32
CLONE_NEW_ANY = 0x7E020080  # NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, NETLINK_ROUTE = 1, 2, 10, 16, 0
X32_BIT = 0x40000000

# The numbers that x86_64 and aarch64 share (all calls since Linux 5.1).
COMMON = {
    "pidfd_getfd": 438, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "quotactl_fd": 443, "process_madvise": 440, "memfd_secret": 447, "open_tree_attr": 467,
}  # fmt: skip
X86_64 = {
    "ptrace": 101, "syslog": 103, "uselib": 134, "ustat": 136, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159,
    "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
    "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175,
    "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246,
    "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279,
    "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
AARCH64 = {
    "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89,
    "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116,
    "ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171,
    "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "migrate_pages": 238,
    "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
    "kcmp": 272, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Architecture:
    """What differs between machines: the audit id, the denied numbers, and the calls whose arguments are looked at."""

    audit: int
    denied: dict[str, int]
    clone: int
    ioctl: int
    socket: int
    has_x32: bool = False


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, X86_64 | COMMON, clone=56, ioctl=16, socket=41, has_x32=True),
    "aarch64": Architecture(0xC00000B7, AARCH64 | COMMON, clone=220, ioctl=29, socket=198),
}
CLONE3 = 435


class UnknownMachine(Exception):
    """There is no table for this machine: no sandbox is made on it."""


def program(machine: str) -> bytes:
    """The filter for ``machine`` as ``uname -m`` names it."""
    if machine not in ARCHITECTURES:
        raise UnknownMachine(f"no system call table for {machine}")
    arch = ARCHITECTURES[machine]
    lines = [
        _line(LD_WORD, ARCH),
        _line(JUMP_EQUAL, arch.audit, 1, 0),
        _line(RETURN, KILL_PROCESS),
        _line(LD_WORD, NUMBER),
    ]
    if arch.has_x32:
        lines += [_line(JUMP_AT_LEAST, X32_BIT, 0, 1), _fail(errno.ENOSYS)]
    for number in sorted(arch.denied.values()):
        lines += _when_number(number, [_fail(errno.EPERM)])
    lines += _when_number(CLONE3, [_fail(errno.ENOSYS)])
    lines += _when_number(arch.clone, _clone())
    lines += _when_number(arch.ioctl, _ioctl())
    lines += _when_number(arch.socket, _socket())
    return b"".join([*lines, _line(RETURN, ALLOW)])


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _fail(number: int) -> bytes:
    return _line(RETURN, FAIL | number)


def _when_number(number: int, body: list[bytes]) -> list[bytes]:
    """``body``, which always returns, for one call number; the next test for all others."""
    return [_line(JUMP_EQUAL, number, 0, len(body)), *body]


def _clone() -> list[bytes]:
    return [_line(LD_WORD, ARG0), _line(JUMP_ANY_BIT, CLONE_NEW_ANY, 0, 1), _fail(errno.EPERM), _line(RETURN, ALLOW)]


def _ioctl() -> list[bytes]:
    return [
        _line(LD_WORD, ARG1),
        _line(JUMP_EQUAL, TIOCSTI, 1, 0),
        _line(JUMP_EQUAL, TIOCLINUX, 0, 1),
        _fail(errno.EPERM),
        _line(RETURN, ALLOW),
    ]


def _socket() -> list[bytes]:
    return [
        _line(LD_WORD, ARG0),
        _line(JUMP_EQUAL, AF_UNIX, 6, 0),
        _line(JUMP_EQUAL, AF_INET, 5, 0),
        _line(JUMP_EQUAL, AF_INET6, 4, 0),
        _line(JUMP_EQUAL, AF_NETLINK, 0, 2),
        _line(LD_WORD, ARG2),
        _line(JUMP_EQUAL, NETLINK_ROUTE, 1, 0),
        _fail(errno.EAFNOSUPPORT),
        _line(RETURN, ALLOW),
    ]
