"""Whether pods can be made, and what the Driver sees of one: asked by the views, outside any transaction."""

from __future__ import annotations

from django.db import DatabaseError

from environments.compute.contract import Driver, Keeps, NoAnswer, SandboxStatus
from environments.compute.registry import registry
from environments.services.available import PodsAvailable
from environments.services.workplace import Workplace
from nylorun import config
from nylorun.db.tx import require_no_tx
from nylorun.tenant.store import installation_id


def pods_available() -> PodsAvailable:
    """What the configured Driver said last, not older than five seconds."""
    settings = config.current()
    readiness = registry.readiness(settings.driver, _driver())
    return PodsAvailable(settings.driver, readiness.ready, readiness.reason)


def pods_ready() -> bool:
    """Whether pods can be made now; a database that does not answer counts as no."""
    try:
        return pods_available().ready
    except DatabaseError:
        return False


def driver_status(name: str) -> SandboxStatus:
    """What the Driver reports under this name now; raises ``NoAnswer``."""
    return _driver().status(name)


def way_of_copies() -> str:
    """How a pod's new volume gets the bytes of a version: ``reflink``, or ``portable``, from the archive."""
    settings = config.current()
    return registry.way(settings.driver, settings.data_dir)


def keeps_of(place: Workplace) -> Keeps | None:
    """Where the disk of a pod can be kept; ``None`` also while another Driver than the pod's is configured."""
    return _driver().keeps if place.machine is not None and place.driver == config.current().driver else None


def is_filled(place: Workplace, key: str | None) -> bool:
    """Whether the pod's volume was made from the kept disk ``key``, so that it holds that version already.

    Raises ``NoAnswer`` where that cannot be told: the answer for one volume must always be the same, since one that an
    attempt has begun to fill from the archive must not count as whole for the next.
    """
    if place.machine is None or key is None:
        return False
    if place.driver != config.current().driver:
        raise NoAnswer(f"the Driver {place.driver} is not configured")
    driver = _driver()
    return driver.keeps is not None and driver.status(place.machine).filled == key


def _driver() -> Driver:
    require_no_tx()
    settings = config.current()
    return registry.driver(settings.driver, settings.data_dir, installation_id())
