"""One look of disk work that waits for an Environment to be ready, without a lock."""

from __future__ import annotations

from environments.errors import EnvironmentLost, EnvironmentUnavailable
from environments.models import LIVE, rows
from environments.services.operations import Attempt
from environments.services.readiness import ready
from environments.services.rows import facts_of
from environments.services.workplace import Workplace, workplace_of


def look(attempt: Attempt) -> Workplace | None:
    """Where its Engine is now, or ``None`` while it starts; raises when it never will be ready."""
    row = rows().one(attempt.environment_id, where=LIVE)
    if row is None or row.uid != attempt.uid:
        raise EnvironmentUnavailable(f"There is no Environment {attempt.environment_id} now.")
    if row.observed == "lost":
        raise EnvironmentLost(row.id, row.reason)
    if row.observed == "failed" or row.desired == "suspended":
        raise EnvironmentUnavailable(f"Environment {row.id} could not start: {row.reason or 'it was stopped'}")
    return workplace_of(row, facts_of(row).settings.disk_bytes) if ready(row) else None
