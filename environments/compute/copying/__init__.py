"""Disk copies as the control plane makes them: listing, reading, writing and holding a disk through its Engine.

An Engine is not trusted: what it lists comes in strict order, beneath the root and each entry in a folder that was
listed, or the copy fails; counts, sizes and kinds are checked. How much there may be is the caller's limit.

A reader may rely on:
  * every call has a connection of its own, so a listing may be read slowly while files are read beside it;
  * memory: a few pieces, one batch of names (1 MiB) and one entry's attributes and extents;
  * all functions raise :class:`NotAccepted`, :class:`Interrupted` and :class:`CopyFailed` (see ``pulling``). A copy
    that failed in any way may be made again from its beginning.
Sizes are bytes, times nanoseconds since 1970 when they end in ``_ns`` and seconds when they end in ``_s``.
"""

from __future__ import annotations

from environments.compute.copying.holding import Held, hold
from environments.compute.copying.listing import Listed, Listing, TooManyEntries, list_tree
from environments.compute.copying.pulling import CopyFailed
from environments.compute.copying.reading import FileRead, read_files
from environments.compute.copying.stats import Kind, Stat, settled, unpack_stat
from environments.compute.copying.target import Target
from environments.compute.copying.writing import NewEntry, Writable, Written, swap, write_tree

__all__ = [
    "CopyFailed",
    "FileRead",
    "Held",
    "Kind",
    "Listed",
    "Listing",
    "NewEntry",
    "Stat",
    "Target",
    "TooManyEntries",
    "Writable",
    "Written",
    "hold",
    "list_tree",
    "read_files",
    "settled",
    "swap",
    "unpack_stat",
    "write_tree",
]
