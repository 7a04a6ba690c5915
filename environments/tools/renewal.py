"""Leases of the calls of this process: one thread renews all of them in one statement."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from environments.services import calls
from nylorun.kernel.clock import pause

log = logging.getLogger(__name__)


class _Running:
    """The calls that run in this process now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._pid = 0

    def add(self, effect_id: str) -> None:
        """Renew this call's lease from now on."""
        with self._lock:
            self._ids.add(effect_id)
            if self._pid != os.getpid():
                self._pid = os.getpid()
                threading.Thread(target=self._renew_for_ever, name="effect-leases", daemon=True).start()

    def discard(self, effect_id: str) -> None:
        """The call is over."""
        with self._lock:
            self._ids.discard(effect_id)

    def _renew_for_ever(self) -> None:
        while True:
            pause(calls.RENEW_SECONDS)
            with self._lock:
                ids = sorted(self._ids)
            try:
                calls.renew(ids)
            except Exception:
                log.exception("leases of %d calls could not be renewed; the next pass tries again", len(ids))
            finally:
                connection.close()


_running = _Running()


@contextmanager
def renewed(effect_id: str) -> Iterator[None]:
    """Keep a call's lease alive while the block runs."""
    _running.add(effect_id)
    try:
        yield
    finally:
        _running.discard(effect_id)
