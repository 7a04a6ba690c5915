"""Every schedule of beat, each with its reason. Losing a beat only delays: every task looks at rows."""

from __future__ import annotations

from typing import Any

from nylorun.config import Config


def schedule(config: Config) -> dict[str, dict[str, Any]]:
    """The beat table; a message that waited longer than its period is worth nothing and expires."""

    def every(task: str, seconds: float, queue: str) -> dict[str, Any]:
        options = {"queue": queue, "expires": max(seconds, 5.0)}
        return {"task": task, "schedule": seconds, "options": options}

    return {
        # Rows the broker did not take after their commit, or whose task died.
        "outbox": every("workers.outbox_drain", config.outbox_drain_seconds, "control"),
        # Pods whose idle timer ran out: the longest a pod runs past its time.
        "idle": every("workers.idle_scan", config.idle_scan_seconds, "control"),
        # The net under everything else.
        "sweep": every("workers.sweep", config.sweep_seconds, "sweep"),
    }
