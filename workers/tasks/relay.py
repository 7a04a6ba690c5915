"""Tasks of the outbox."""

from __future__ import annotations

from typing import Any

from workers.celery import app
from workers.retry import under_retry_rule
from workers.steps import relay


@app.task(name="workers.outbox_drain", bind=True, time_limit=60)
def outbox_drain(self: Any) -> None:
    """Send again what the broker never took or a dead worker left."""
    under_retry_rule(self, relay.drain)
