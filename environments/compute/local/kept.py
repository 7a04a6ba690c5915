"""Disk images kept beside the archive, so that a fork or a restore on this machine needs no copy of the bytes.

``<root>/.kept/<key>.img`` is a clone of a volume's image; ``<draft>.draft`` is one whose version is not committed. They
share their bytes with the image they come from. The archive is the truth: whatever lies here may go at any moment.

A reader may rely on:
  * an image appears under its key whole, and is never changed; a pod never mounts it, only a clone of it;
  * nothing is kept where files cannot be cloned, for a volume that is a folder, or while the host's disk has less room
    than the volume it comes from could still come to need.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from environments.compute.engine import libc
from environments.compute.local import image, reflink
from environments.compute.local.places import Place
from environments.compute.local.processes import is_alive
from environments.compute.local.reserve import free_bytes

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9_-]{1,100}(\.[0-9]{1,10})?")
DRAFT_SECONDS = 86_400.0
TIGHT = 20
"""Less of the host's disk free than one part in so many: all kept images go, since they hold what is removed."""


class Shelf:
    """The kept images of the data folder ``root``; see :class:`~environments.compute.contract.Keeps`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / ".kept"

    def way(self) -> Literal["reflink", "portable"]:
        """See the contract; found out once a process."""
        works = reflink.why_not(self._root) is None and image.why_not(self._root) is None
        return "reflink" if works else "portable"

    def path(self, key: str) -> Path | None:
        """The image kept under ``key``."""
        path = self._of(key, "img")
        return path if path.is_file() else None

    # ------------------------------------------------------------------------------------------------ keeping

    def keep(self, name: str, draft: str) -> bool:
        """See the contract."""
        place, target = Place(self._root, name), self._of(draft, "draft")
        target.unlink(missing_ok=True)
        try:
            if self.way() != "reflink" or not place.image.is_file():
                return False
            if free_bytes(self._root) < image.capacity(place.image):
                log.info("the disk of %s is not kept: the host's disk has too little room", name)
                return False
            self._folder.mkdir(mode=0o700, exist_ok=True)
            return self._clone(place, target)
        except OSError as error:
            log.warning("the disk of %s is not kept: %s", name, error)
            return False

    def _clone(self, place: Place, target: Path) -> bool:
        """Everything the pod has written goes to the image first. Its file system needs no freezing, which a process
        that dies in between would leave for good: its processes stand still, and what the clone holds beyond that is
        a journal in order."""
        engine = (place.read_pod() or {}).get("engine")
        if engine is None:
            return False
        process = engine["pid"], engine["startTime"]
        sync = _syncing(f"/proc/{process[0]}/root/workspace", lambda: is_alive(*process))
        if not sync:
            return False
        reflink.clone(place.image, target)
        if is_alive(*process):
            return True
        target.unlink(missing_ok=True)
        return False

    def settle(self, draft: str, key: str | None) -> None:
        """See the contract."""
        source = self._of(draft, "draft")
        with contextlib.suppress(FileNotFoundError):
            if key is None:
                source.unlink()
            else:
                source.replace(self._of(key, "img"))

    # ------------------------------------------------------------------------------------------------ tidying

    def tidy(self) -> frozenset[str]:
        """See the contract."""
        keys = set()
        for path in self._folder.glob("*") if self._folder.is_dir() else ():
            if path.suffix == ".img":
                keys.add(path.stem)
            elif path.suffix == ".draft":
                _remove_old(path, time.time() - DRAFT_SECONDS)
        if keys and self._is_tight():
            log.warning("the host's disk is nearly full: %d kept disks are removed", len(keys))
            self.drop(keys)
            keys.clear()
        return frozenset(keys)

    def _is_tight(self) -> bool:
        found = os.statvfs(self._root)
        return free_bytes(self._root) < found.f_blocks * found.f_frsize // TIGHT

    def drop(self, keys: Iterable[str]) -> None:
        """See the contract."""
        for key in keys:
            self._of(key, "img").unlink(missing_ok=True)

    def _of(self, name: str, kind: str) -> Path:
        if NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no name of a kept disk")
        return self._folder / f"{name}.{kind}"


def _remove_old(path: Path, before: float) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime < before:
            path.unlink()


def _syncing(folder: str, still: Callable[[], bool]) -> bool:
    """Write everything of the file system that ``folder`` shows to its disk, if it is ``still`` the right one."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not still():
            return False
        libc.call("syncfs", handle)
    finally:
        os.close(handle)
    return True
