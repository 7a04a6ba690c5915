"""Idle timers after a change of the Tenant's settings."""

from __future__ import annotations

from environments.services.rearm import rearm_all

__all__ = ["rearm_all"]
