"""Whether pods can be made, and what the Driver sees of one: asked by the views, outside any transaction."""

from __future__ import annotations

from django.db import DatabaseError

from environments.compute.contract import SandboxStatus
from environments.compute.registry import registry
from environments.services.available import PodsAvailable
from nylorun import config
from nylorun.db.tx import require_no_tx
from nylorun.tenant.store import installation_id


def pods_available() -> PodsAvailable:
    """What the configured Driver said last, not older than five seconds."""
    require_no_tx()
    settings = config.current()
    driver = registry.driver(settings.driver, settings.data_dir, installation_id())
    readiness = registry.readiness(settings.driver, driver)
    return PodsAvailable(settings.driver, readiness.ready, readiness.reason)


def pods_ready() -> bool:
    """Whether pods can be made now; a database that does not answer counts as no."""
    try:
        return pods_available().ready
    except DatabaseError:
        return False


def driver_status(name: str) -> SandboxStatus:
    """What the Driver reports under this name now; raises ``NoAnswer``."""
    require_no_tx()
    settings = config.current()
    return registry.driver(settings.driver, settings.data_dir, installation_id()).status(name)
