"""Waiting for an Operation: its row is looked at until it ended or the asked time is over.

The wait holds one of the process's places and no database connection; when no place is free the caller is answered
as if the time were over.
"""

from __future__ import annotations

from environments.services.operation_views import Seen, find
from nylorun.http.prefer import WAIT_MAX
from nylorun.http.waiting import release, waiting
from nylorun.kernel.clock import monotonic, pause
from nylorun.kernel.errors import ServiceUnavailable

WAIT_DEFAULT = 30
FIRST_LOOK = 0.01
SOON, SOON_LOOK, LONGEST_LOOK = 5.0, 0.05, 0.25
"""In its first seconds an Operation is looked at often: most are short."""


def await_end(operation_id: str, wait: int | None = None) -> Seen:
    """The Operation after at most ``wait`` seconds (``WAIT_DEFAULT``); it may not have ended."""
    operation = find(operation_id)
    if operation.has_ended or wait == 0:
        return operation
    seconds = min(WAIT_DEFAULT if wait is None else wait, WAIT_MAX)
    try:
        with waiting():
            return _look_until(operation, monotonic() + seconds)
    except ServiceUnavailable:
        return operation


def _look_until(operation: Seen, deadline: float) -> Seen:
    step, often = FIRST_LOOK, monotonic() + SOON
    while not operation.has_ended and monotonic() + step < deadline:
        pause(step)
        operation = find(operation.id)
        release()
        step = min(step * 1.5, SOON_LOOK if monotonic() < often else LONGEST_LOOK)
    return operation
