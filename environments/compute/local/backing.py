"""What holds the files of a volume: a plain folder, or a disk image that ends where the Recipe's storage ends.

Folder: ``workspace/`` and ``harness/`` lie in ``volume/``, and only the host's disk ends what they take. Image: they
lie in an ext4 of the storage's size in the sparse file ``volume/disk.img``, which the processes of a pod mount over
``volume/disk`` for themselves (see ``disk``); between two pods nothing of it is mounted.

A reader may rely on:
  * a new volume is an image where this process may mount one and the host's disk has all of its size free; else it is
    a folder. What it became it stays, and a volume that lost a part is never completed by an empty one;
  * on a host's disk without any room an image that was left in order can still be mounted and read, and what is
    removed in it gives its room back;
  * an image grows with the storage of a later spec, at the next start, and never shrinks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.compute.local import image, owners
from environments.compute.local.errors import CannotStart
from environments.compute.local.places import Place, hold
from environments.compute.local.reserve import free_bytes


@dataclass(frozen=True, slots=True)
class Volume:
    """A whole volume: its outside user, what ``launch`` mounts for it, and whether it holds the storage asked for."""

    uid: int | None
    disk: dict[str, str] | None
    limited: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept image (see ``kept``): its key and its file."""

    key: str
    image: Path


def prepare(place: Place, owner: dict[str, Any], storage: int, kept: Kept | None = None) -> Volume:
    """Make what is missing of the volume of ``place``, for ``storage`` bytes; the caller holds the name.

    A new image starts from ``kept`` where that is possible: then the owner's note says ``filled`` and its key. An image
    whose maker died before it wrote the note counts as not filled.
    Raises :class:`CannotStart` for an image that lost a part, or that this process may not mount, and ``OSError``.
    """
    _require_whole(place)
    as_image = place.is_image() or (not place.is_folder() and _wants_image(place.root, storage))
    if as_image and os.geteuid() != 0:
        raise CannotStart(f"the volume of {place.name} is a disk image, which only root mounts")
    with hold(place.root, ".uids"):
        uid = owners.pick(place)
        place.claim_volume(uid, as_image=as_image)
    if not as_image or uid is None:
        place.give_id(owner)
        return Volume(uid, None, limited=False)
    if not place.image.exists():
        if kept is not None and image.adopted(place.image, kept.image, storage, uid):
            owner = {**owner, "filled": kept.key}
        else:
            image.make(place.image, storage, uid)
    place.give_id(owner)
    disk = {"image": str(place.image), "at": str(place.disk)}
    return Volume(uid, disk, limited=_fit(place, storage))


def _require_whole(place: Place) -> None:
    """A volume with an id is whole; one without may be half made, but its image is never without its outside user."""
    broken = place.volume_id() is None if place.has_id() else place.image.exists() and not place.disk.is_dir()
    if broken:
        raise CannotStart(f"a part of the volume of {place.name} is missing, and it is not made anew")


def _wants_image(root: Path, storage: int) -> bool:
    """A size that the host's disk could not hold even once is no limit: there a folder says sooner what is wrong."""
    return free_bytes(root) >= storage and image.why_not(root) is None


def _fit(place: Place, storage: int) -> bool:
    """Let the image grow to ``storage`` bytes where the host has them; whether it is no larger than that."""
    size = image.capacity(place.image)
    if size < storage and free_bytes(place.root) >= storage - size:
        image.grow(place.image, storage)
    return size <= storage
