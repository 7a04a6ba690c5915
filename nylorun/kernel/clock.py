"""The only reader of the wall clock of this machine.

Rules and services never read it: they take ``now`` as an argument, or read the database's clock once per transaction
through ``Tx.now()``, after its row locks. What is left for this file is measuring (``monotonic``) and pausing between
two looks at something outside.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

monotonic = time.monotonic


def utc_now() -> datetime:
    """This machine's clock, timezone aware. For logs, file names and tokens of this process, never for rows."""
    return datetime.now(UTC)  # noqa: TID251 the one place


def pause(seconds: float, stop: threading.Event | None = None) -> bool:
    """Wait ``seconds`` or until ``stop`` is set; true when it was."""
    return (stop or threading.Event()).wait(seconds)


def iso(moment: datetime) -> str:
    """A time as every response shows it: UTC, milliseconds, ``Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
