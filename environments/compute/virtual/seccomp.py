"""A list of the system calls that a process needs which only computes and works on files; the kernel refuses the rest.

A reader may rely on:
  * what is not named here fails with EPERM (``clone3`` with ENOSYS, so that the C library falls back to ``clone``): no
    sockets, no exec, no new processes, no tracing, no mounts, no keys, no other process's limits or signals;
  * threads are allowed, processes are not; a signal reaches only the caller's own process;
  * a filter is never lifted, and every thread made later has it.
Known machines: x86_64 and aarch64. Elsewhere ``program`` answers ``None`` and nothing is filtered.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH = 0, 4
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000  # x86_64 only: the same calls by other numbers

_CLONE_THREAD = 0x00010000
_PR_SET_NAME = 15
_FIONBIO, _FIOCLEX = 0x5421, 0x5451

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# name: number on x86_64, number on aarch64 (None: that machine has no such call). The most frequent come first.
_PLAIN: dict[str, tuple[int | None, int | None]] = {
    "futex": (202, 98), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "sendto": (44, 206),
    "recvfrom": (45, 207), "recvmsg": (47, 212), "sendmsg": (46, 211), "read": (0, 63), "write": (1, 64),
    "close": (3, 57), "fstat": (5, 80), "openat": (257, 56), "newfstatat": (262, 79), "statx": (332, 291),
    "lseek": (8, 62), "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216),
    "madvise": (28, 233), "brk": (12, 214), "poll": (7, None), "ppoll": (271, 73), "select": (23, None),
    "pselect6": (270, 72), "epoll_ctl": (233, 21), "epoll_create1": (291, 20), "epoll_pwait2": (441, 441),
    "eventfd2": (290, 19), "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "readv": (19, 65),
    "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "fcntl": (72, 25), "pipe2": (293, 59), "open": (2, None),
    "creat": (85, None), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "stat": (4, None),
    "lstat": (6, None), "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17),
    "chdir": (80, 49), "fchdir": (81, 50), "statfs": (137, 43), "fstatfs": (138, 44), "mkdir": (83, None),
    "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "symlink": (88, None),
    "symlinkat": (266, 36), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "utimensat": (280, 88),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "fsync": (74, 82), "fdatasync": (75, 83),
    "preadv2": (327, 286), "pwritev2": (328, 287),
    "sync_file_range": (277, 84), "copy_file_range": (326, 285), "sendfile": (40, 71), "flock": (73, 32),
    "fadvise64": (221, 223), "umask": (95, 166), "mincore": (27, 232), "membarrier": (324, 283),
    "set_robust_list": (273, 99), "rseq": (334, 293), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "exit": (60, 93), "exit_group": (231, 94), "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "fsetxattr": (190, 7), "fgetxattr": (193, 10), "flistxattr": (196, 13), "syncfs": (306, 267),
    "restart_syscall": (219, 128), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, None),
    "shutdown": (48, 210), "getsockopt": (55, 209), "getsockname": (51, 204), "getpeername": (52, 205),
    "getrandom": (318, 278), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "uname": (63, 160), "sysinfo": (99, 179), "getrusage": (98, 165), "getrlimit": (97, 163),
}  # fmt: skip
_CLONE, _CLONE3, _TGKILL = (56, 220), (435, 435), (234, 131)
_PRLIMIT, _PRCTL, _IOCTL = (302, 261), (157, 167), (16, 29)


def program(pid: int, machine: str = os.uname().machine) -> bytes | None:
    """The filter for process ``pid`` as the kernel reads it; ``None`` for an unknown machine."""
    if machine not in _MACHINES:
        return None
    arch, column = _MACHINES[machine]
    steps = [_step(_LOAD, _ARCH), _step(_EQUAL, arch, 1, 0), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER)]
    if machine == "x86_64":
        steps += [_step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, _ERRNO | errno.EPERM)]
    steps += _checked(_CLONE[column], 0, _ANY_BIT, (_CLONE_THREAD,))
    steps += _checked(_TGKILL[column], 0, _EQUAL, (pid,))
    steps += _checked(_PRLIMIT[column], 0, _EQUAL, (0,))
    steps += _checked(_PRCTL[column], 0, _EQUAL, (_PR_SET_NAME,))
    steps += _checked(_IOCTL[column], 1, _EQUAL, (_FIONBIO, _FIOCLEX))
    steps += [_step(_EQUAL, _CLONE3[column], 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    steps += _plain([numbers[column] for numbers in _PLAIN.values()])
    return b"".join(steps)


def _plain(numbers: Iterable[int | None]) -> list[bytes]:
    """Allow the ``numbers``; anything else falls through to EPERM."""
    known = [number for number in numbers if number is not None]
    to_allow = range(len(known), 0, -1)
    steps = [_step(_EQUAL, number, distance, 0) for number, distance in zip(known, to_allow, strict=True)]
    return [*steps, _step(_RETURN, _ERRNO | errno.EPERM), _step(_RETURN, _ALLOW)]


def _checked(number: int, argument: int, test: int, values: tuple[int, ...]) -> list[bytes]:
    """Allow call ``number`` when the low half of ``argument`` passes ``test`` against one of ``values``."""
    body = [_step(_LOAD, 16 + 8 * argument)]
    body += [_step(test, value, len(values) - index, 0) for index, value in enumerate(values)]
    body += [_step(_RETURN, _ERRNO | errno.EPERM), _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, 0, len(body)), *body]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def install() -> bool:
    """Filter this thread and all it makes; ``False`` when this machine or kernel has no filter. Needs no_new_privs."""
    steps = program(os.getpid())
    if steps is None:
        return False
    wanted = _Program(len(steps) // 8, steps)
    return bool(_LIBC.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(wanted), 0, 0) == 0)
