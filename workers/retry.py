"""The one rule of failure for tasks.

* A step that did its work, or found none, settles its outbox row by itself.
* :class:`Retry` means later, at a time the step names; nothing was lost and nothing is counted.
* Anything else is an infrastructure failure or a bug: the outbox row counts the attempt and keeps its own time, the
  error is logged once with its cause, and the message is done. Domain outcomes are rows, never exceptions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.db import connections

from nylorun.kernel.clock import monotonic
from nylorun.kernel.errors import Retry
from nylorun.record import outbox
from workers import metrics

log = logging.getLogger(__name__)


def under_retry_rule(task: Any, step: Callable[..., object], *args: Any, row: str | None = None) -> None:
    """Run ``step``; ``row`` is the dedupe key of the outbox row this run serves, if any."""
    started = monotonic()
    try:
        step(*args)
    except Retry as later:
        task.apply_async(args=task.request.args, countdown=later.seconds, queue=_queue_of(task))
    except Exception as error:
        log.exception("%s%r failed", task.name, args)
        if row is not None:
            _count(row, error)
    finally:
        metrics.observe(task.name, monotonic() - started)
        connections.close_all()


def _queue_of(task: Any) -> str:
    info = task.request.delivery_info or {}
    return str(info.get("routing_key") or "control")


def _count(row: str, error: Exception) -> None:
    try:
        outbox.failed(row, f"{type(error).__name__}: {error}")
    except Exception:
        log.exception("the failure of %s could not be counted; its row keeps its time", row)
