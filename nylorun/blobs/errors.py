"""What can go wrong with blobs and trees. Callers above turn these into answers; none is an ``ApiError``."""

from __future__ import annotations


class BlobError(Exception):
    """The family: catch a member, not this."""


class StoreUnavailable(BlobError):
    """Disk, network, permissions or credentials of a store failed. The text is the reason; trying again may help."""


class BlobMissing(BlobError):
    """The store answers and has no blob of this name."""

    def __init__(self, key: str) -> None:
        super().__init__(f"Blob {key} is missing.")
        self.key = key


class BlobDamaged(BlobError):
    """A blob's bytes are not what its name promises: codec, length, hash, or what is inside."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"Blob {key} is damaged: {reason}.")
        self.key = key
        self.reason = reason


class BadTree(BlobError):
    """What a writer was given is no legal tree."""


class TreeTooLarge(BlobError):
    """A tree reached a limit while it was written; ``limit`` is ``files`` (entries) or ``versionBytes``."""

    def __init__(self, limit: str, maximum: int) -> None:
        super().__init__(f"The tree exceeds {limit} = {maximum}.")
        self.limit = limit
        self.max = maximum
