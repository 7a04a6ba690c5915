"""Disk images of volumes: making one, letting one grow, and whether one can be mounted here.

A reader may rely on:
  * an image appears at its path whole or not at all, and what is in it has been synced. It is sparse, holds
    ``workspace/`` and ``harness/`` of the outside user, and its journal has its place on the host's disk;
  * ``adopted`` makes one from a kept image of another volume, which costs no copy of its bytes;
  * ``why_not`` tries what a pod does: it makes a small image and runs ``true`` in a sandbox that has its folders there.
    A "yes" is kept for the life of the process, a "no" for ``AGAIN`` seconds.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environments.compute.local import host, probe, reflink
from environments.compute.local.disk import in_use, lock
from environments.compute.local.errors import CannotStart
from environments.compute.local.owners import NoUidLeft
from environments.compute.local.processes import NotSwept, marker

log = logging.getLogger(__name__)

TOOLS = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
# 4 MiB is the smallest journal. A larger one gains little, and every volume takes its journal from the host for good.
# An inode for every 5 KiB, not 16: files of one block each must be able to fill most of a disk, as packages do.
MKFS_OPTIONS = (
    "-q", "-F", "-m", "0", "-i", "5120", "-J", "size=4", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=0",
)  # fmt: skip
TOOL_SECONDS = 60.0
SUPERBLOCK, MAGIC, JOURNAL_TREE = 1024, 0xEF53, 0x10C
EXTENTS = b"\x0a\xf3"
TRIAL_SIZE = 32 << 20
AGAIN = 60.0
RELEASE_SECONDS = 10.0
RELEASE_PAUSE = 0.002
LOG_TAIL = 500


def make(image: Path, size: int, uid: int) -> None:
    """Make a file system of ``size`` bytes at ``image``; the caller is the only one who does.

    Raises :class:`CannotStart` and ``OSError``. What an earlier maker left half done beside it is removed.
    """
    with _folder_beside(image) as making:
        seed, beside = making / "seed", making / image.name
        seed.mkdir(mode=0o755)  # its mode becomes that of the file system's own root
        for folder in (seed / "workspace", seed / "harness"):
            folder.mkdir(mode=0o700)
            os.chown(folder, uid, uid)
        beside.touch(mode=0o600, exist_ok=False)
        os.truncate(beside, size)
        _run("mkfs.ext4", *MKFS_OPTIONS, "-d", str(seed), str(beside))
        _allocate_journal(beside)
        beside.rename(image)


@contextmanager
def _folder_beside(image: Path) -> Iterator[Path]:
    """A folder for making ``image``, of a name that no ``mkfs`` of a maker that was killed still writes to."""
    for stale in image.parent.glob(".making-*"):
        shutil.rmtree(stale, ignore_errors=True)
    making = image.parent / f".making-{secrets.token_hex(6)}"
    making.mkdir(mode=0o700)
    try:
        yield making
    finally:
        shutil.rmtree(making, ignore_errors=True)


def adopted(image: Path, kept: Path, most: int, uid: int) -> bool:
    """Make ``image`` from the image ``kept``, of at most ``most`` bytes, for the outside user ``uid`` (see ``adopt``).

    ``False`` when that is not possible, and nothing is there then; the caller is the only one who makes ``image``.
    """
    try:
        if capacity(kept) > most:
            return False
        with _folder_beside(image) as making:
            at, beside = making / "at", making / image.name
            at.mkdir(mode=0o700)
            reflink.clone(kept, beside)
            _adopt(beside, at, uid)
            beside.rename(image)
    except (CannotStart, NotSwept, OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s is filled from the archive: %s", image, error)
        return False
    return True


def _adopt(image: Path, at: Path, uid: int) -> None:
    try:
        plan = {"image": str(image), "at": str(at), "uid": uid}
        result = host.run_code("environments.compute.local.adopt", plan, marker(secrets.token_hex(8)))
    finally:
        wait_released(image)
    if result.returncode != 0:
        raise CannotStart(result.stderr.strip()[-LOG_TAIL:])


def wait_released(image: Path) -> None:
    """Wait until the kernel has unmounted the image whose processes are gone.

    Raises :class:`NotSwept` when much that was written is still on its way after ``RELEASE_SECONDS``.
    """
    deadline = time.monotonic() + RELEASE_SECONDS
    while in_use(str(image)):
        if time.monotonic() > deadline:
            raise NotSwept(f"the disk image {image} is still in use")
        time.sleep(RELEASE_PAUSE)  # noqa: TID251 - the kernel tells nobody when a loop device has let go


def _allocate_journal(image: Path) -> None:
    """Give the journal its place on the host's disk; ``mkfs`` does so only where a file can be zeroed by the kernel.

    The superblock has a copy of the root of the journal's extent tree, which for one so small is the whole tree.
    """
    with image.open("r+b") as file:
        head = os.pread(file.fileno(), 1024, SUPERBLOCK)
        tree, block = head[JOURNAL_TREE : JOURNAL_TREE + 60], 1024 << int.from_bytes(head[24:28], "little")
        if tree[:2] != EXTENTS:
            raise CannotStart("mkfs.ext4 makes no extents here")
        for at in range(12, 12 + 12 * int.from_bytes(tree[2:4], "little"), 12):
            length = int.from_bytes(tree[at + 4 : at + 6], "little")
            start = int.from_bytes(tree[at + 8 : at + 12], "little")
            os.posix_fallocate(file.fileno(), start * block, length * block)
        os.fsync(file.fileno())


def _run(tool: str, *arguments: str, good: tuple[int, ...] = (0,), keeps: int | None = None) -> None:
    """Run a tool of e2fsprogs; raises :class:`CannotStart` unless it ends well.

    One that inherits the handle ``keeps`` may take as long as it likes.
    """
    program = shutil.which(tool, path=TOOLS)
    if program is None:
        raise CannotStart(f"{tool} is missing: install e2fsprogs")
    result = subprocess.run(
        [program, *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env={"LC_ALL": "C"}, timeout=TOOL_SECONDS if keeps is None else None, check=False,
        pass_fds=() if keeps is None else (keeps,),
    )  # fmt: skip
    if result.returncode not in good:
        raise CannotStart(f"{tool} failed: {result.stdout.strip()}")


def capacity(image: Path) -> int:
    """The size in bytes of the file system in ``image``; that of the file, when there is no file system in it."""
    with image.open("rb") as file:
        file.seek(SUPERBLOCK)
        head = file.read(64)
    if int.from_bytes(head[56:58], "little") != MAGIC:
        return image.stat().st_size
    blocks, shift = int.from_bytes(head[4:8], "little"), int.from_bytes(head[24:28], "little")
    return blocks << (10 + shift)


def grow(image: Path, size: int) -> None:
    """Let the file system grow to ``size`` bytes. One that cannot keeps its size, and a line in the log says why.

    Nothing ends the tools early, and they hold the image's lock by themselves: a worker that is killed meanwhile leaves
    no half-grown file system to a pod. (The kernel could grow it while it is mounted, but asks for CAP_SYS_RESOURCE,
    which root in a container has not.) Raises ``OSError`` when the image is in use.
    """
    handle = lock(str(image))
    try:
        _run("e2fsck", "-f", "-p", str(image), good=(0, 1), keeps=handle)
        _run("resize2fs", str(image), f"{size // 1024}K", keeps=handle)
    except CannotStart as error:
        log.warning("%s keeps its size: %s", image, error)
    finally:
        os.close(handle)


# ---------------------------------------------------------------------------------------------------- whether it works


class _Memory:
    """What was found out last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reason: str | None = "not known"
        self.asked_at = float("-inf")


_memory = _Memory()


def why_not(root: Path) -> str | None:
    """Why images cannot be mounted for pods of the data folder ``root``; ``None`` when they can. Never raises."""
    with _memory.lock:
        if _memory.reason is not None and time.monotonic() - _memory.asked_at >= AGAIN:
            _memory.reason = _try(root)
            _memory.asked_at = time.monotonic()
            if _memory.reason is not None:
                log.info("new volumes of pods get no size limit: %s", _memory.reason)
        return _memory.reason


def _try(root: Path) -> str | None:
    if os.geteuid() != 0:
        return "only root mounts disk images"
    if not _makes_nodes(Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")):
        return "/dev is not the kernel's (devtmpfs), so a new loop device would have no node"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=root) as folder:
            return _try_in(root, Path(folder))
    except (CannotStart, OSError, NoUidLeft, subprocess.TimeoutExpired) as error:
        return str(error)


def _try_in(root: Path, folder: Path) -> str | None:
    uid = probe.outside_user(root) or 0
    image, at = folder / "disk.img", folder / "disk"
    at.mkdir(mode=0o700)
    make(image, TRIAL_SIZE, uid)
    return probe.run_true(probe.usable_host(root), at, uid, {"image": str(image), "at": str(at)})


def _makes_nodes(mounts: str) -> bool:
    return any(line.split()[1:3] == ["/dev", "devtmpfs"] for line in mounts.splitlines())
