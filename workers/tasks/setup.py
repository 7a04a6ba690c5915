"""Tasks of Operations."""

from __future__ import annotations

from typing import Any

from workers.celery import app
from workers.retry import under_retry_rule
from workers.steps import setup


@app.task(name="workers.operation_run", bind=True)
def operation_run(self: Any, operation_id: str) -> None:
    """Run one attempt of an Operation."""
    under_retry_rule(self, setup.run_operation, operation_id, row=f"operation.run:{operation_id}")
