"""The egress gate's door to the rows: each question in a thread, so that no connection of the gate waits for another.

A database that is away is :class:`~vault.gate.doorkeeper.Unavailable`. What cannot be recorded is logged and lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from django.db import DatabaseError, InterfaceError

from environments.services import egress
from nylorun.http.waiting import release
from nylorun.kernel.errors import ApiError, ServiceUnavailable
from vault.gate.doorkeeper import Opened, Pass, Refused, Stale, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")
THREADS = 8


class Rows:
    """A :class:`~vault.gate.doorkeeper.Doorkeeper` over this installation's rows."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "gate")

    async def admit(self, token: str) -> Pass | Stale:
        return await self._asked(partial(egress.admit, token))

    async def open(self, admitted: Pass, host: str) -> Sequence[Opened]:
        return await self._asked(partial(egress.open_bound, admitted, host))

    async def via_allowed(self, admitted: Pass, via: str) -> bool:
        return await self._asked(partial(egress.via_allowed, via))

    async def record(self, refused: Sequence[Refused]) -> None:
        for one in refused:
            try:
                await self._asked(partial(egress.record, one))
            except (Unavailable, ApiError) as error:
                log.warning("a refused way out of %s was not recorded: %s", one.whose.environment_id, error)

    async def compare(self, passes: Collection[Pass]) -> Mapping[Pass, Pass]:
        return await self._asked(partial(egress.compare, passes))

    def close(self) -> None:
        """End the threads, waiting for what is under way."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _asked(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _answered, question)


def _answered(question: Callable[[], T]) -> T:
    try:
        return question()
    except (DatabaseError, InterfaceError, ServiceUnavailable) as error:
        raise Unavailable from error
    finally:
        release()
