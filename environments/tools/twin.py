"""The kept disk of a snapshot: taken while the pod is held, and only once its version is committed given the key by
which a fork or restore finds it.

    with Twin(attempt.call) as twin:
        tree = copy_out(..., twin=twin.of(place))
        if finish(attempt, tree):
            twin.settle(key)

Nothing here fails a snapshot: the archive is the truth, and a disk without a twin is copied from there.
"""

from __future__ import annotations

import logging

from environments.compute.contract import Keeps
from environments.services.workplace import Workplace
from environments.tools.machines import keeps_of

log = logging.getLogger(__name__)


class Twin:
    """At most one draft of one attempt; dropped at the end of the block unless it was settled."""

    def __init__(self, draft: str) -> None:
        self._draft = draft
        self._keeps: Keeps | None = None
        self._machine = ""
        self._taken = False

    def __enter__(self) -> Twin:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def of(self, place: Workplace) -> Twin:
        """The pod whose disk it is."""
        self._keeps, self._machine = keeps_of(place), place.machine or ""
        return self

    def take(self) -> None:
        """Keep the disk as it is now."""
        self._taken = self._keeps is not None and self._keeps.keep(self._machine, self._draft)

    def drop(self) -> None:
        """Forget what was taken, if anything was."""
        self.settle(None)

    def settle(self, key: str | None) -> None:
        """Give what was taken its key."""
        if self._keeps is None or not self._taken:
            return
        self._taken = False
        try:
            self._keeps.settle(self._draft, key)
        except OSError as error:
            log.warning("the kept disk %s is not settled: %s", self._draft, error)
