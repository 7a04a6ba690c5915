"""Trees that are written beside a workspace and then put in its place: ``<root>/.stage-<uid>-<name>/workspace``.

A stage lies outside everything that a workspace sees. Its name is used for one tree: the note ``swapped-in``, which
whoever writes the tree adds once it is whole, goes with it into the workspace's place, so that a repeated swap knows
that it has happened.

A reader may rely on:
  * a workspace has one stage at a time: ``begin`` removes what earlier ones left;
  * ``swap`` is one rename: at every moment the workspace is the old one or the new one, on file systems that can
    exchange two names; on others a crash between two renames is mended by the next ``swap``;
  * what was set aside is out of the way at once and removed by ``Folders.remove``.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress

from environments.compute.engine import libc
from environments.compute.engine.wire import Refused, ToolError
from environments.compute.virtual.folders import FOLDER, STAGE, WORKSPACE, Folders, is_uid

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOTE = "swapped-in"
_RENAME_EXCHANGE = 2


def check_name(name: str) -> str:
    """``name`` when it may name a stage; raises ``Refused``."""
    if _NAME.fullmatch(name) is None:
        raise Refused("bad_request", "stage must be 1 to 64 characters of A-Z, a-z, 0-9, _ and -.")
    return name


class Stages:
    """The stages beside the workspaces of ``folders``, below the same root."""

    def __init__(self, folders: Folders) -> None:
        self._root = folders.root
        self._folders = folders

    def begin(self, uid: str, name: str) -> None:
        """Make an empty stage; earlier ones of the workspace go. Raises ``ToolError`` for a name used before."""
        if self._note(uid) == name:
            raise ToolError("tool.exists", "This stage is the workspace already.")
        self._folders.remove(self.set_aside(uid))
        stage = _stage(uid, name)
        os.mkdir(stage, 0o700, dir_fd=self._root)
        os.mkdir(f"{stage}/{WORKSPACE}", 0o755, dir_fd=self._root)

    def open(self, uid: str, name: str) -> tuple[int, int, int]:
        """Handles of the stage's folder, of its tree, and of the note to be written; the caller closes them."""
        home = os.open(_stage(uid, name), FOLDER, dir_fd=self._root)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return home, os.open(WORKSPACE, FOLDER, dir_fd=home), os.open(_NOTE, flags, 0o600, dir_fd=home)

    def is_whole(self, uid: str, name: str) -> bool:
        """Whether the stage is there and was written to its end."""
        return self._note(_stage(uid, name)) == name

    def swap(self, uid: str, name: str) -> tuple[bool, list[str]]:
        """Put a whole stage in the workspace's place: whether that happened now, and what is to be removed.

        Raises ``ToolError`` when there is no such stage, or it is not whole. Nothing of the workspace may run.
        """
        stage = _stage(uid, name)
        if not self.is_whole(uid, name):
            if self._note(uid) == name:
                return False, self.set_aside(uid)
            raise ToolError("tool.not_found", "There is no such stage, or it was not written to its end.")
        replaced = self._exchange(stage, uid)
        os.fsync(self._root)
        return True, [*replaced, *self.set_aside(uid)]

    def set_aside(self, uid: str) -> list[str]:
        """Take the names of all stages of a workspace away; gives those to be removed."""
        with os.scandir(self._root) as entries:
            found = [entry.name for entry in entries if entry.name.startswith(_stage(uid, ""))]
        return [self._folders.set_aside(name) for name in found]

    def _note(self, home: str) -> str | None:
        try:
            handle = os.open(f"{home}/{_NOTE}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._root)
        except OSError:
            return None
        try:
            return os.read(handle, 256).decode("ascii", "replace")
        finally:
            os.close(handle)

    def _exchange(self, stage: str, uid: str) -> list[str]:
        """Rename; gives what had to be set aside for it."""
        replaced: list[str] = []
        try:
            libc.call("renameat2", self._root, stage.encode(), self._root, uid.encode(), _RENAME_EXCHANGE)
        except OSError:  # no workspace yet, or a file system that cannot exchange
            with suppress(FileNotFoundError):
                replaced.append(self._folders.set_aside(uid))
            os.rename(stage, uid, src_dir_fd=self._root, dst_dir_fd=self._root)
        return replaced


def _stage(uid: str, name: str) -> str:
    if not is_uid(uid):
        raise ValueError("not a workspace uid")
    return f"{STAGE}{uid}-{name}"


def note_whole(note: int, name: str) -> None:
    """Say in the handle ``note`` that the tree of the stage ``name`` is whole and on the disk."""
    if os.write(note, name.encode("ascii")) != len(name):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(note)
