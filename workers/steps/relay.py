"""The drain of the outbox: bounded batches, no lock held while sending."""

from __future__ import annotations

from datetime import timedelta

from nylorun import config
from nylorun.kernel.clock import monotonic
from nylorun.record import outbox
from workers.handover import send

BUDGET = 2.0


class _FirstPass:
    """A process's first pass takes every due row: its predecessor may have died with messages in its hands."""

    pending = True


def drain() -> int:
    """Send due rows for at most two seconds; returns how many were sent."""
    grace = timedelta(0) if _FirstPass.pending else timedelta(seconds=config.current().outbox_grace_seconds)
    deadline = monotonic() + BUDGET
    sent = 0
    while monotonic() < deadline:
        messages = outbox.claim_due(grace)
        for message in messages:
            send(message)
        sent += len(messages)
        if len(messages) < outbox.BATCH:
            break
    _FirstPass.pending = False
    return sent
