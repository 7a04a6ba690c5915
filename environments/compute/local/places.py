"""Where the local Driver keeps its things, and the only file that reads and writes them.

``<root>/<name>/`` holds one object: ``object.json`` (what it shall be), ``pod.json`` (which processes are its pod),
``run/`` (``engine.sock``, ``join``, ``log``, ``ended.json``) and ``volume/``: ``id``, ``owner.json``, and either
``workspace/`` and ``harness/`` or ``disk.img``, which holds these two, and ``disk/``, the empty folder over which pods
mount it (see ``backing``). Only ``workspace`` and ``harness`` are ever seen, and written, by a pod.

A reader may rely on:
  * a file is there whole or not at all (written beside, renamed); one that cannot be read counts as missing. What must
    outlive the host's power is synced; ``pod.json`` speaks of processes and need not;
  * ``hold`` lets one process at a time change a name; it is over when that process is, however it ends;
  * ``set_aside`` makes a name free at once; what was there is removed afterwards, also after a crash in between.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments.compute.engine.removal import remove_tree
from environments.compute.local.errors import Busy

SOCKET_PATH_MAX = 107
LOCK_SECONDS = 60.0
LOCK_POLL = 0.02


class Place:
    """The folder of one name."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self.folder = root / name
        self.run = self.folder / "run"
        self.volume = self.folder / "volume"
        self.image = self.volume / "disk.img"
        self.disk = self.volume / "disk"

    @property
    def socket(self) -> Path:
        """Where the Engine's socket is; a short way round when the folder's own path is too long for an address."""
        path = self.run / "engine.sock"
        return path if len(os.fsencode(path)) <= SOCKET_PATH_MAX else short_folder(self.root) / f"{self.name}.sock"

    # ------------------------------------------------------------------------------------------------ files

    def read_object(self) -> dict[str, Any] | None:
        return read_json(self.folder / "object.json")

    def write_object(self, value: dict[str, Any]) -> None:
        write_json(self.folder / "object.json", value)

    def read_pod(self) -> dict[str, Any] | None:
        return read_json(self.folder / "pod.json")

    def write_pod(self, value: dict[str, Any]) -> None:
        write_json(self.folder / "pod.json", value, sync=False)

    def forget_pod(self) -> None:
        (self.folder / "pod.json").unlink(missing_ok=True)

    def read_ended(self) -> dict[str, Any] | None:
        return read_json(self.run / "ended.json")

    def read_log(self, most: int) -> str:
        """The end of what bwrap and the Engine said."""
        try:
            data = (self.run / "log").read_bytes()
        except OSError:
            return ""
        return data[-most:].decode("utf-8", "replace").strip()

    def write_join(self, token: str) -> None:
        """Keep the join token for the supervisor; nothing of ``run`` is seen inside the pod."""
        write_bytes(self.run / "join", token.encode("utf-8"), 0o440)

    # ------------------------------------------------------------------------------------------------ volume

    @property
    def workspace(self) -> Path:
        """Where pods find the workspace; in an image that is seen in their mount namespace alone."""
        return self._files / "workspace"

    @property
    def harness(self) -> Path:
        return self._files / "harness"

    @property
    def _files(self) -> Path:
        return self.disk if self.is_image() else self.volume

    @property
    def bearer(self) -> Path:
        """The folder that bears the volume's outside user."""
        return self.disk if self.is_image() else self.workspace

    def is_image(self) -> bool:
        """Whether the volume is a disk image, or was to become one."""
        return os.path.lexists(self.disk) or os.path.lexists(self.image)

    def is_folder(self) -> bool:
        """Whether the volume is a plain folder, whole or not."""
        return not self.is_image() and (self.has_id() or os.path.lexists(self.volume / "workspace"))

    def has_id(self) -> bool:
        return os.path.lexists(self.volume / "id")

    def volume_id(self) -> str | None:
        """The id of a whole volume; ``None`` when a part of it is missing."""
        try:
            text = (self.volume / "id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
        return text if text and self._is_whole() else None

    def _is_whole(self) -> bool:
        folder = self.bearer
        if not folder.is_dir() or folder.is_symlink():
            return False
        return not self.is_image() or (self.image.is_file() and not self.image.is_symlink())

    def has_volume(self) -> bool:
        """Whether anything of a volume is left, whole or not."""
        return os.path.lexists(self.volume)

    def has_join(self) -> bool:
        """Whether the object has a token to join with."""
        return (self.run / "join").is_file()

    def volume_owner(self) -> dict[str, Any]:
        return read_json(self.volume / "owner.json") or {}

    def make_folders(self) -> None:
        for folder in (self.root, self.folder, self.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def claim_volume(self, uid: int | None, *, as_image: bool) -> None:
        """Make what is missing of the volume's folders, the one that bears its outside user among them."""
        self.volume.mkdir(mode=0o700, exist_ok=True)
        folders = (self.disk,) if as_image else (self.volume / "workspace", self.volume / "harness")
        for folder in folders:
            folder.mkdir(mode=0o700, exist_ok=True)
            if uid is not None:
                os.chown(folder, uid, uid, follow_symlinks=False)

    def give_id(self, owner: dict[str, Any]) -> None:
        """Write the volume's id, the last of its parts, unless it has one: a volume that was half made has none."""
        if not self.has_id():
            write_json(self.volume / "owner.json", owner, sync=False)  # the id beside it is synced after it
            write_bytes(self.volume / "id", secrets.token_hex(16).encode("ascii"), 0o600)

    # ------------------------------------------------------------------------------------------------ removal

    def set_aside(self, *, keep_volume: bool) -> None:
        """Take object and run (and the volume, unless it is kept) away from the name in one rename each."""
        trash = self.root / ".trash"
        trash.mkdir(mode=0o700, exist_ok=True)
        aside = trash / f"{self.name}-{secrets.token_hex(8)}"
        if not keep_volume or not self.volume.is_dir():
            _rename(self.folder, aside)
            return
        aside.mkdir(mode=0o700)
        for name in ("object.json", "pod.json", "run"):
            _rename(self.folder / name, aside / name)


def empty_trash(root: Path) -> None:
    """Remove everything that was set aside; several may do it at once."""
    try:
        trash = os.open(root / ".trash", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        for name in os.listdir(trash):
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                remove_tree(trash, name, force=True)
    finally:
        os.close(trash)


@contextlib.contextmanager
def hold(root: Path, name: str) -> Iterator[None]:
    """Be the only one who changes ``name``; raises :class:`Busy` when another does for longer than ``LOCK_SECONDS``."""
    locks = root / ".locks"
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = _locked(locks / name, time.monotonic() + LOCK_SECONDS)
    try:
        yield
    finally:
        os.close(handle)


def _locked(path: Path, deadline: float) -> int:
    """A handle that holds the lock of the file that is at ``path`` now, and not of one that was removed meanwhile."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if _try_lock(handle) and _is_at(handle, path):
            return handle
        os.close(handle)
        if time.monotonic() > deadline:
            raise Busy(f"another process is changing {path.name}")
        time.sleep(LOCK_POLL)  # noqa: TID251 - flock has no time limit of its own


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def forget_lock(root: Path, name: str) -> None:
    """Remove the lock file of a name that has nothing left; only its holder may."""
    (root / ".locks" / name).unlink(missing_ok=True)


def short_folder(root: Path) -> Path:
    """A private folder with a short path for the sockets of a data folder with a long one."""
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    folder = Path(f"/tmp/nylorun-{os.geteuid()}-{digest}")  # noqa: S108 - checked below to be ours alone
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "somebody else made this folder", str(folder))
    return folder


def _rename(source: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        source.rename(target)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in ``path``; ``None`` when there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: dict[str, Any], *, sync: bool = True) -> None:
    write_bytes(path, json.dumps(value, sort_keys=True).encode("ascii"), 0o600, sync=sync)


def write_bytes(path: Path, data: bytes, mode: int, *, sync: bool = True) -> None:
    """Put ``data`` at ``path``, whole or not at all."""
    beside = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(handle)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
