"""Outbox topic -> task and queue. Arguments are ids and nothing else: a task reads the row and does what it wants
now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Route:
    """Which task serves a topic, on which queue, and which payload members are its arguments."""

    task: str
    queue: str
    arguments: tuple[str, ...]

    def args(self, payload: Mapping[str, Any]) -> list[str]:
        """The arguments of one message."""
        return [str(payload[name]) for name in self.arguments]


ROUTES: Mapping[str, Route] = {
    "reconcile": Route("workers.reconcile", "control", ("environmentId", "trigger")),
    "operation.run": Route("workers.operation_run", "disk", ("operationId",)),
    "operation.setup": Route("workers.operation_run", "setup", ("operationId",)),
    "content.remove": Route("workers.content_remove", "sweep", ("key",)),
    "workspace.remove": Route("workers.workspace_remove", "sweep", ("uid",)),
    "sandbox.rearm": Route("workers.rearm_idle", "sweep", ()),
}
