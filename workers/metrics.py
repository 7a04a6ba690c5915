"""What workers measure of themselves."""

from __future__ import annotations

from prometheus_client import Histogram

TASK_SECONDS = Histogram("nylorun_task_seconds", "How long a task ran, by its name.", ["task"])
