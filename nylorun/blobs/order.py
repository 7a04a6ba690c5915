"""What is asked of the entries of a tree together: their order, their folders, their number and their bytes."""

from __future__ import annotations

import sys

from nylorun.blobs.errors import BadTree, TreeTooLarge


class Order:
    """Entries in strictly ascending bytewise order of their whole paths, each below folders that came before it.

    Sorted so, the folders that may still get children form a stack: those of ``a`` lie between ``a/`` and ``a0`` ('0'
    is the byte after '/'), and a sibling such as ``a-b`` that comes before ``a/`` is complete before ``a/`` begins.
    """

    def __init__(self, max_entries: int | None = None, max_bytes: int | None = None) -> None:
        self.files = 0
        self.size = 0
        self._max_entries = sys.maxsize if max_entries is None else max_entries
        self._max_bytes = sys.maxsize if max_bytes is None else max_bytes
        self._last = b""
        self._parent = b""
        self._open: list[bytes] = []

    def check(self, path: bytes, size: int) -> None:
        """Raises ``BadTree`` or ``TreeTooLarge`` when the entry cannot be next. Changes nothing."""
        if path <= self._last:
            raise BadTree(f"{path[:200]!r} comes after {self._last[:200]!r}: entries are in the order of their paths.")
        parent = path[: max(path.rfind(b"/"), 0)]
        if parent != self._parent and parent and parent not in self._open:
            raise BadTree(f"{path[:200]!r} is in no folder of this tree.")
        if self.files >= self._max_entries:
            raise TreeTooLarge("files", self._max_entries)
        if self.size + size > self._max_bytes:
            raise TreeTooLarge("versionBytes", self._max_bytes)

    def admit(self, path: bytes, size: int, is_dir: bool) -> None:
        """Checks the entry and takes it."""
        self.check(path, size)
        self._last = path
        self.files += 1
        self.size += size
        parent = path[: max(path.rfind(b"/"), 0)]
        if is_dir or parent != self._parent:
            while self._open and path >= self._open[-1] + b"0":
                self._open.pop()
            if is_dir:
                self._open.append(path)
            self._parent = parent
