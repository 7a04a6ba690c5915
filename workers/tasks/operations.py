"""Tasks of Operations and of what they leave in the archive."""

from __future__ import annotations

from typing import Any

from workers.celery import app
from workers.retry import under_retry_rule
from workers.steps import operations, sweeps


@app.task(name="workers.operation_run", bind=True)
def operation_run(self: Any, operation_id: str) -> None:
    """Run one attempt of an Operation."""
    under_retry_rule(self, operations.run_operation, operation_id, row=operations.key_of(operation_id))


@app.task(name="workers.content_remove", bind=True)
def content_remove(self: Any, key: str) -> None:
    """Remove the content rows that a deleted version or a failed copy left."""
    under_retry_rule(self, sweeps.remove_content, key, row=f"content.remove:{key}")
