"""Making a clone of another volume's image a new volume's own: what runs in a process of its own, as root.

The plan on standard input is ``{image, at, uid}``. The image is mounted over the folder ``at``, seen by this process
alone (see ``disk``), and the kernel unmounts it when the process ends, however it ends.

A reader may rely on:
  * afterwards the workspace is what an import from the archive would have made: the same files, modes, times, links,
    holes and ``user.*`` attributes, all of the outside user ``uid``; no socket, pipe, device, access list or other
    attribute. The harness folder is empty;
  * links are not followed, and depth does not matter;
  * an exit code other than 0 means that it was not done wholly, also when it took longer than ``SECONDS``.

Standard library only, and of that only what starts fast.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from environments.compute.engine import jsonc, libc
from environments.compute.engine.removal import FOLDER, empty_folder
from environments.compute.local.disk import attach

SECONDS = 20.0
"""Owners of some million files. Much more would keep others from the name; the copy from the archive does not."""
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
KEPT_KINDS = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK})
SET_IDS = stat.S_ISUID | stat.S_ISGID


def main() -> None:
    """Carry the plan out."""
    plan = jsonc.loads(sys.stdin.buffer.read())
    libc.call("unshare", CLONE_NEWNS)
    libc.call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    attach(plan["image"], plan["at"])
    adopt(plan["at"], plan["uid"], time.monotonic() + SECONDS)


def adopt(files: str, uid: int, deadline: float) -> None:
    """Make ``workspace`` and ``harness`` in the folder ``files`` the user's; nobody else may be changing them.

    Leaves this process's working folder elsewhere. Raises ``OSError``, and ``TimeoutError`` after ``deadline``.
    """
    for name in ("harness", "workspace"):
        folder = os.open(f"{files}/{name}", FOLDER)
        try:
            if name == "harness":
                empty_folder(folder)
            _strip(folder)
            os.fchown(folder, uid, uid)
            os.fchmod(folder, 0o700)
            os.fchdir(folder)
        finally:
            os.close(folder)
        _own_beneath(uid, deadline)
    os.chdir("/")


def _own_beneath(uid: int, deadline: float) -> None:
    """Everything beneath the working folder. Going back by ``..`` is safe where nobody else moves folders."""
    waiting = [_own_level(uid)]
    while waiting:
        if not waiting[-1]:
            waiting.pop()
            if waiting:
                os.chdir("..")
            continue
        if time.monotonic() > deadline:
            raise TimeoutError("there are too many files")
        folder = os.open(waiting[-1].pop(), FOLDER)
        os.fchdir(folder)
        os.close(folder)
        waiting.append(_own_level(uid))


def _own_level(uid: int) -> list[bytes]:
    """The entries of the working folder; the names of its folders."""
    before, removed, folders = os.stat("."), False, []
    with os.scandir(b".") as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if stat.S_IFMT(status.st_mode) not in KEPT_KINDS:
                os.unlink(entry.name)
                removed = True
                continue
            _own(entry.name, status.st_mode, uid)
            if stat.S_ISDIR(status.st_mode):
                folders.append(entry.name)
    if removed:
        os.utime(".", ns=(before.st_atime_ns, before.st_mtime_ns))
    return folders


def _own(name: bytes, mode: int, uid: int) -> None:
    _strip(name)
    os.chown(name, uid, uid, follow_symlinks=False)
    if stat.S_ISREG(mode) and mode & SET_IDS:
        os.chmod(name, stat.S_IMODE(mode))  # the kernel takes these bits away with the owner


def _strip(file: bytes | int) -> None:
    """Remove attributes that no archive holds, access lists among them."""
    follow = isinstance(file, int)
    for name in os.listxattr(file, follow_symlinks=follow):
        if not name.startswith("user."):
            os.removexattr(file, name, follow_symlinks=follow)
