"""Keeping the leases of one running attempt, from a thread beside it.

    with Keeper(attempt) as keeper:
        copy(..., cancel=keeper.stop, before_call=keeper.require)

``stop`` is set once the attempt is cancelled or another one has its lease; the work then ends and writes nothing more.
Progress is written at most every ``LOOK`` seconds, the leases at least every ``RENEW_SECONDS``.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from django.db import DatabaseError

from environments.services import operations
from environments.services.leases import RENEW_SECONDS
from environments.services.operations import Attempt, Standing
from environments.tools.disk import Progress
from nylorun.http.waiting import release
from nylorun.kernel.clock import monotonic, pause
from nylorun.kernel.errors import ServiceUnavailable

log = logging.getLogger(__name__)

LOOK = 1.0


class Stopped(Exception):
    """The attempt may go no further: it was cancelled, or is not the Operation's any more."""


class Keeper:
    """A context for the work of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._over = threading.Event()
        self._renewed_at = monotonic()
        self._written: dict[str, int] | None = None
        self._thread = threading.Thread(target=self._run, name=f"lease-{attempt.operation_id}", daemon=True)
        self.progress = Progress()
        self.standing = Standing.OURS
        self.stop = threading.Event()

    def __enter__(self) -> Keeper:
        release()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def require(self) -> None:
        """Renew now, before a step that must not be an old attempt's; raises :class:`Stopped`."""
        self._renew()
        if self.standing is not Standing.OURS:
            raise Stopped

    def look(self) -> None:
        """Find out how the attempt stands, without raising."""
        with suppress(Stopped):
            self.require()

    def _run(self) -> None:
        while not pause(LOOK, self._over):
            self._look()
            if self.standing is not Standing.OURS:
                return

    def _look(self) -> None:
        try:
            due = monotonic() - self._renewed_at >= RENEW_SECONDS
            if due or self.progress.view() != self._written or operations.has_moved(self._attempt):
                self._renew()
        except (ServiceUnavailable, DatabaseError) as error:
            # The lease goes on for a while; every write-back looks at it again.
            log.warning("the lease of %s was not renewed: %s", self._attempt.operation_id, error)
        finally:
            release()

    def _renew(self) -> None:
        progress = self.progress.view()
        try:
            self.standing = operations.renew(self._attempt, progress if progress["files"] else None)
        finally:
            release()
        self._written, self._renewed_at = progress, monotonic()
        if self.standing is not Standing.OURS:
            self.stop.set()
