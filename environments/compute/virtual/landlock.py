"""Landlock: after ``confine`` this process may touch files beneath the given folders, and no others, for good.

A reader may rely on:
  * devices, sockets and FIFOs cannot be made, and nothing can be executed, not even beneath the folders;
  * open handles stay usable; names outside the folders cannot be opened, made, renamed or removed;
  * where the kernel can, TCP is closed and signals reach only processes of the same confinement;
  * ``confine`` answers the kernel's Landlock version, 0 when it has none and nothing was confined.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
_VERSION_FLAG, _PATH_BENEATH = 1, 1

_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(1, 6))
_MAKE_DIR, _MAKE_REG, _MAKE_SYM, _REFER, _TRUNCATE = (1 << bit for bit in (7, 8, 12, 13, 14))
_FILE_WORK = (
    _WRITE_FILE
    | _READ_FILE
    | _READ_DIR
    | _REMOVE_DIR
    | _REMOVE_FILE
    | _MAKE_DIR
    | _MAKE_REG
    | _MAKE_SYM
    | _REFER
    | _TRUNCATE
)
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many file rights a version knows; later ones know 16
_TCP_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def version() -> int:
    """The kernel's Landlock version; 0 without one."""
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)))


def confine(folders: Iterable[int]) -> int:
    """Confine this thread, and all it makes, to the ``folders`` (handles). Needs no_new_privs. Raises ``OSError``."""
    found = version()
    if not found:
        return 0
    handled = (1 << _FILE_RIGHTS.get(found, 16)) - 1
    ruleset = _checked(_LIBC.syscall(_CREATE_RULESET, *_attributes(found, handled), 0))
    try:
        for folder in folders:
            rule = struct.pack("=Qi", _FILE_WORK & handled, folder)
            _checked(_LIBC.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
        _checked(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return found


def _attributes(found: int, handled: int) -> tuple[bytes, int]:
    packed = struct.pack("=Q", handled)
    if found >= 4:
        packed += struct.pack("=Q", _TCP_BIND_AND_CONNECT)
    if found >= 6:
        packed += struct.pack("=Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    return packed, len(packed)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
