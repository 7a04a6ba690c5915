"""Outside users of pods: a uid of the host for each volume, so that no two Environments share one.

A reader may rely on:
  * as root, every volume has a uid that nobody has in the user database's range and no other volume of this root has;
    it stays with the volume, one of whose folders (``Place.bearer``) bears it, and is free again when that is removed;
  * as an ordinary user there is no choice: pods run as that user, and ``pick`` says ``None``.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from environments.compute.local.places import Place

FIRST, LAST, SPAN = 1_000_000, 2_000_000_000, 100_000


class NoUidLeft(Exception):
    """All uids of this data folder are taken, or this user namespace has none."""


def pick(place: Place) -> int | None:
    """The uid for the volume at ``place``: the one it has, or a free one. The caller holds the lock of all uids."""
    if os.geteuid() != 0:
        return None
    if place.bearer.is_dir() and (uid := place.bearer.stat().st_uid) != 0:
        return uid
    taken = _taken(place.root)
    first, last = uid_range(place.root, Path("/proc/self/uid_map").read_text(encoding="ascii"))
    for uid in range(first, last):
        if uid not in taken:
            return uid
    raise NoUidLeft(f"no free uid from {first} to {last}")


def _taken(root: Path) -> set[int]:
    return {
        path.stat().st_uid
        for bearer in ("workspace", "disk")
        for path in root.glob(f"*/volume/{bearer}")
        if path.is_dir()
    }


def uid_range(root: Path, uid_map: str) -> tuple[int, int]:
    """The uids that belong to one data folder: a stretch of its own, so that two installations hardly ever meet.

    In a container whose user namespace knows only the first few uids, the upper half of what it knows.
    """
    top = max(int(line.split()[0]) + int(line.split()[2]) for line in uid_map.splitlines())
    if top <= FIRST + SPAN:
        return max(top // 2, 1), top
    stretches = (min(top, LAST) - FIRST) // SPAN
    digest = hashlib.sha256(os.fsencode(root.resolve())).digest()
    first = FIRST + int.from_bytes(digest[:8], "big") % stretches * SPAN
    return first, first + SPAN
