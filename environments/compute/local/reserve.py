"""A little room that stays the Driver's on a full disk, so that pods can still be stopped, woken and deleted.

``<root>/.reserve`` holds ``SIZE`` bytes for nothing. When the disk is all but full it is given up for the length of one
change, whose few small files then fit, and taken back as soon as there is room again. A sandbox that fills the disk at
that very moment may be faster: then the change does not answer and is tried again, as for every other reason.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

SIZE = 1 << 20
TIGHT = 512 << 10
"""Less free than this: the reserve is given up."""


@contextlib.contextmanager
def room(root: Path) -> Iterator[None]:
    """Do the block with the reserve's room, when nothing else is left."""
    if free_bytes(root) < TIGHT:
        _give_up(root)
    try:
        yield
    finally:
        if free_bytes(root) > 2 * SIZE:
            _take(root)


def free_bytes(root: Path) -> int:
    """Bytes this process may still write; plenty while the folder does not exist."""
    try:
        found = os.statvfs(root)
    except FileNotFoundError:
        return 2 * SIZE + 1
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return blocks * found.f_frsize


def _give_up(root: Path) -> None:
    with contextlib.suppress(OSError):
        os.truncate(root / ".reserve", 0)


def _take(root: Path) -> None:
    path = root / ".reserve"
    with contextlib.suppress(OSError):
        if path.exists() and path.stat().st_blocks * 512 >= SIZE:
            return
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(handle, 0, SIZE)
        finally:
            os.close(handle)
