"""The folders of the workspaces: ``<root>/<uid>/workspace``, one per Environment row.

A reader may rely on:
  * a uid is a UUID in its canonical spelling; no other text ever becomes a name below the root;
  * a folder is whole or not there: it is made beside its name and renamed onto it;
  * ``drop`` takes the name away first, so a workspace made again at once under the same uid is empty;
  * all work is relative to the root's handle, whatever path leads there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress

from environments.compute.engine.removal import remove_tree

_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
WORKSPACE = "workspace"
_GOING, _COMING, STAGE = ".going-", ".coming-", ".stage-"


def is_uid(text: str) -> bool:
    """Whether ``text`` may name a workspace."""
    return _UID.fullmatch(text) is not None


class Folders:
    """The folders below one root, a handle that stays the caller's."""

    def __init__(self, root: int) -> None:
        self._root = root

    @property
    def root(self) -> int:
        """The handle of the folder that all are in."""
        return self._root

    def open(self, uid: str) -> tuple[int, int]:
        """Handles of the workspace's own folder and of its tree; made when missing. The caller closes both."""
        if not is_uid(uid):
            raise ValueError("not a workspace uid")
        try:
            home = os.open(uid, FOLDER, dir_fd=self._root)
        except FileNotFoundError:
            self._make(uid)
            home = os.open(uid, FOLDER, dir_fd=self._root)
        return home, os.open(WORKSPACE, FOLDER, dir_fd=home)

    def _make(self, uid: str) -> None:
        fresh = f"{_COMING}{uid}-{os.urandom(6).hex()}"
        os.mkdir(fresh, 0o700, dir_fd=self._root)
        os.mkdir(f"{fresh}/{WORKSPACE}", 0o755, dir_fd=self._root)
        try:
            os.rename(fresh, uid, src_dir_fd=self._root, dst_dir_fd=self._root)
        except OSError:  # another process was first
            remove_tree(self._root, fresh)

    def drop(self, uid: str) -> bool:
        """Remove a workspace for good, whatever its owner made of it; ``False`` when there was none."""
        if not is_uid(uid):
            raise ValueError("not a workspace uid")
        try:
            going = self.set_aside(uid)
        except FileNotFoundError:
            return False
        self.remove([going])
        return True

    def set_aside(self, name: str) -> str:
        """Take a name below the root away; gives the one to remove. Raises ``FileNotFoundError``."""
        going = f"{_GOING}{name.lstrip('.')}-{os.urandom(6).hex()}"
        os.rename(name, going, src_dir_fd=self._root, dst_dir_fd=self._root)
        return going

    def remove(self, names: Iterable[str]) -> None:
        """Remove what was set aside."""
        for name in names:
            remove_tree(self._root, name, force=True)

    def ages(self) -> dict[str, float]:
        """Every workspace with the seconds since it was made."""
        now = time.time()
        found: dict[str, float] = {}
        with os.scandir(self._root) as entries:
            for entry in entries:
                if is_uid(entry.name):
                    with suppress(FileNotFoundError):
                        made = entry.stat(follow_symlinks=False).st_mtime
                        found[entry.name] = max(0.0, round(now - made, 3))
        return found

    def leftovers(self) -> list[str]:
        """What an earlier process began to make or to remove and did not finish, stages too; to be asked before work
        begins, because what is begun now looks the same."""
        with os.scandir(self._root) as entries:
            return [entry.name for entry in entries if entry.name.startswith((_GOING, _COMING, STAGE))]

    def sweep(self, names: Iterable[str]) -> None:
        """Remove leftovers, as far as they can be removed."""
        for name in names:
            with suppress(OSError):
                remove_tree(self._root, name, force=True)
