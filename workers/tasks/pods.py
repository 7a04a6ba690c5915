"""Tasks of pods and their idle timers."""

from __future__ import annotations

from typing import Any

from workers.celery import app
from workers.retry import under_retry_rule
from workers.steps import pods, rearm


@app.task(name="workers.reconcile", bind=True, time_limit=300)
def reconcile(self: Any, environment_id: str, trigger: str = "reconcile") -> None:
    """Move one pod toward what its row wants."""
    row = f"reconcile:{environment_id}" if trigger == "reconcile" else None
    under_retry_rule(self, pods.reconcile_when_due, environment_id, trigger, row=row)


@app.task(name="workers.idle_scan", bind=True, time_limit=60)
def idle_scan(self: Any) -> None:
    """Look at every pod whose idle timer ran out."""
    under_retry_rule(self, pods.scan_idle)


@app.task(name="workers.rearm_idle", bind=True, time_limit=600)
def rearm_idle(self: Any) -> None:
    """Set the idle timers of running pods by the settings of now."""
    under_retry_rule(self, rearm.rearm_all, row="sandbox.rearm:all")
