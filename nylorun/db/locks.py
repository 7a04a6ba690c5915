"""The lock order, as a type. Every transaction takes the locks it needs in this order and never goes back up.

``docs/locks.md`` says why each rank stands where it does. Rows of one rank are taken by ascending key.
"""

from __future__ import annotations

from enum import IntEnum


class Rank(IntEnum):
    """Where a lock stands. A transaction that finds it needs an earlier one starts over (:class:`StartOver`)."""

    IDEMPOTENCY = 0
    SESSION = 1
    ENVIRONMENT = 2
    MANIFEST = 3
    ENVIRONMENTS_CREATE = 4
    OPERATION = 5
    ARTIFACTS_QUOTA = 6
    ARTIFACT = 7
    VAULT = 8
    EFFECT = 9
    STREAM = 10
    OUTBOX = 11


FIRST_RANK_AFTER_NOW = Rank.VAULT
"""``now`` is read when every row that decides is locked: a later wait would make it a time before the decision.

What follows (Vault, Effects, stream heads, outbox rows) is only written by the decision.
"""


class LockOrderError(AssertionError):
    """A bug: a lock was taken against the order, or after ``now`` was read. Raised in production too."""


class StartOver(Exception):
    """The transaction found out that it needs an earlier lock, or lost a race: roll back and run it again."""


class LockLedger:
    """The locks one transaction holds: refuses a step back up and a second key out of order."""

    def __init__(self) -> None:
        self._last: tuple[Rank, str] | None = None
        self._now_read = False

    def take(self, rank: Rank, key: str) -> None:
        """Note a lock that is about to be taken; raises :class:`LockOrderError` when it may not be."""
        if self._last is not None and (rank, key) < self._last:
            raise LockOrderError(f"lock {rank.name} {key!r} after {self._last[0].name} {self._last[1]!r}")
        if self._now_read and rank < FIRST_RANK_AFTER_NOW:
            raise LockOrderError(f"lock {rank.name} {key!r} after now was read")
        self._last = (rank, key)

    def read_now(self) -> None:
        """Note that ``now`` was read: only what the decision writes may be locked from here on."""
        self._now_read = True
