"""The blobs a reader used last, uncompressed and verified."""

from __future__ import annotations

import threading
from collections import OrderedDict

from nylorun.blobs.blob import read_blob
from nylorun.blobs.store import Store

BYTES = 16 << 20


class BlobCache:
    """At most ``BYTES`` of content, or one blob that is larger. Threads may share it; two may read a blob twice."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, blob: str, size: int) -> bytes:
        """The content; raises ``BlobMissing`` and ``BlobDamaged``."""
        with self._lock:
            if (data := self._held.get(blob)) is not None and len(data) == size:
                self._held.move_to_end(blob)
                return data
        data = read_blob(self._store, blob, size)
        with self._lock:
            self._keep(blob, data)
        return data

    def _keep(self, blob: str, data: bytes) -> None:
        if blob in self._held:
            return
        self._held[blob] = data
        self._size += len(data)
        while self._size > BYTES and len(self._held) > 1:
            self._size -= len(self._held.popitem(last=False)[1])
