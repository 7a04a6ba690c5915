"""Tasks of the sweep."""

from __future__ import annotations

from typing import Any

from workers.celery import app
from workers.retry import under_retry_rule
from workers.steps import sweeps


@app.task(name="workers.sweep", bind=True, time_limit=600)
def sweep(self: Any) -> None:
    """The net under everything else."""
    under_retry_rule(self, sweeps.sweep)


@app.task(name="workers.delete_unused", bind=True, time_limit=120)
def delete_unused(self: Any) -> None:
    """Delete Environments that were unused for their ``deleteAfter``."""
    under_retry_rule(self, sweeps.delete_unused)


@app.task(name="workers.workspace_remove", bind=True, time_limit=600)
def workspace_remove(self: Any, uid: str) -> None:
    """Remove the workspace a deleted Environment left."""
    under_retry_rule(self, sweeps.remove_workspace, uid, row=f"workspace.remove:{uid}")
