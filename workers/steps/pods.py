"""One pod, one look after the other, until nothing is left to do now: read (no lock), act (no transaction), report.

Safe to run twice, at any time, from several processes: the lock in Redis only saves work, the fence of the write-back
is what decides.
"""

from __future__ import annotations

import logging
import uuid
from datetime import timedelta
from functools import lru_cache

import redis

from environments.compute.contract import Driver, NoAnswer, SandboxSpec, SandboxStatus
from environments.compute.registry import registry
from environments.reconcile import Delete, Trigger, World
from environments.services import observe, sweep
from nylorun import config
from nylorun.db.tx import require_no_tx
from nylorun.kernel.errors import Retry
from nylorun.record import outbox
from nylorun.tenant.store import installation_id
from vault.services import authority

log = logging.getLogger(__name__)

ROUNDS = 6
LOCK_MS = 15_000
"""How long a dead worker's lock keeps the others away. It only saves work: a run that outlives it meets the fence."""
LOCK_RETRY = 0.5
EARLY = timedelta(seconds=0.3)
"""A message may come this much before the time of its row: two clocks set them."""
_UNLOCK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


def reconcile_when_due(environment_id: str, trigger: str = "reconcile") -> None:
    """Serve one message. One whose row was set to a later time meanwhile has another message coming, and does nothing:
    so there is one pending run for an Environment, however many messages its wishes, repeats and retries made.
    """
    if trigger != "idle" and outbox.waits(f"reconcile:{environment_id}", EARLY):
        return
    reconcile_pod(environment_id, trigger)


def reconcile_pod(environment_id: str, trigger: str = "reconcile") -> None:
    """Move the machine toward what the row wants, as far as it goes without waiting."""
    with OneAtATime(environment_id):
        for _ in range(ROUNDS):
            if not _look(environment_id, "idle" if trigger == "idle" else "reconcile"):
                return
            trigger = "reconcile"


def scan_idle() -> None:
    """Decide for every pod whose idle timer ran out; one that fails does not stop the others."""
    for environment_id in sweep.idle_candidates():
        try:
            reconcile_pod(environment_id, "idle")
        except Retry:
            log.debug("%s is being reconciled; the next scan looks again", environment_id)


def _look(environment_id: str, trigger: Trigger) -> bool:
    """One look; true when another one is worth it at once."""
    settings = config.current()
    seen = observe.look_at(environment_id)
    if seen is None:
        return False
    driver = driver_of(seen.row.driver)
    name, retiring = seen.names
    world = World(_ask(driver, name), None if retiring is None else _ask(driver, retiring))
    work = observe.record(
        seen,
        world,
        trigger=trigger,
        start_deadline=timedelta(seconds=settings.start_deadline_seconds),
        places=observe.Places(
            settings.engine_url,
            settings.egress_url,
            authority.certificate() if "network" in seen.row.applied else "",
        ),
    )
    acted = [_act(driver, action) for action in work.actions]
    return work.again_at_once or (bool(acted) and all(acted))


def driver_of(name: str | None) -> Driver:
    """The Driver a pod was made with; while another one is configured it does not answer."""
    settings = config.current()
    configured = settings.driver if name == settings.driver else "none"
    return registry.driver(configured, settings.data_dir, installation_id())


def _ask(driver: Driver, name: str) -> SandboxStatus | None:
    require_no_tx()
    try:
        return driver.status(name)
    except NoAnswer:
        return None


def _act(driver: Driver, action: SandboxSpec | Delete) -> bool:
    """Carry one action out; one that is not answered is tried again at the next look."""
    require_no_tx()
    try:
        if isinstance(action, Delete):
            driver.delete(action.name, keep_volume=action.keep_volume)
            return True
        driver.apply(action)
    except NoAnswer as error:
        log.warning("the Driver did not answer: %s", error)
        return False
    # A pod that starts says so itself when it joins; one that stops is worth another look.
    return action.mode == "Suspended"


class OneAtATime:
    """A lock in Redis with an expiry. Without Redis the work goes on: correctness rests on the fence."""

    def __init__(self, environment_id: str) -> None:
        self._key = f"nylorun:reconcile:{environment_id}"
        self._token = uuid.uuid4().hex
        self._held = False

    def __enter__(self) -> None:
        try:
            self._held = bool(_redis().set(self._key, self._token, nx=True, px=LOCK_MS))
        except redis.RedisError:
            return
        if not self._held:
            raise Retry("another worker reconciles it", seconds=LOCK_RETRY)

    def __exit__(self, *exc: object) -> None:
        if not self._held:
            return
        try:
            _redis().eval(_UNLOCK, 1, self._key, self._token)
        except redis.RedisError:
            log.debug("%s is left to its expiry", self._key)


@lru_cache(maxsize=1)
def _redis() -> redis.Redis:
    return redis.Redis.from_url(config.current().redis_url, socket_timeout=1, socket_connect_timeout=0.5)
