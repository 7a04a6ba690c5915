"""Clones of files: a second file that shares the bytes of the first until one of them is written to.

btrfs and XFS make them (FICLONE), ext4 and tmpfs do not. A clone is the file as it was at one moment: the file system
keeps writers of both files away while it is made.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import tempfile
import threading
from pathlib import Path

log = logging.getLogger(__name__)

FICLONE = 0x40049409
TRIAL_SIZE = 1 << 20


def clone(source: Path, target: Path) -> None:
    """Make ``target`` a clone of ``source``, on the disk when this returns. Raises ``OSError``, leaving no target."""
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(write, FICLONE, read)
            os.fsync(write)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        finally:
            os.close(write)
    finally:
        os.close(read)


class _Memory:
    """What was found out, by data folder."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reasons: dict[Path, str | None] = {}


_memory = _Memory()


def why_not(root: Path) -> str | None:
    """Why files in the folder ``root`` cannot be cloned; ``None`` when they can. Tried once a process, never raises."""
    with _memory.lock:
        if root not in _memory.reasons:
            _memory.reasons[root] = reason = _try(root)
            log.info("disks in %s are copied by %s", root, "reflink" if reason is None else f"the archive: {reason}")
        return _memory.reasons[root]


def _try(root: Path) -> str | None:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=root) as folder:
            source, target = Path(folder, "source"), Path(folder, "target")
            data = secrets.token_bytes(TRIAL_SIZE)
            source.write_bytes(data)
            clone(source, target)
            return None if target.read_bytes() == data else "a clone is not what was cloned"
    except OSError as error:
        return f"the file system clones no files ({error.strerror})"
