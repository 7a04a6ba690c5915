"""The installation's settings: one frozen, typed, checked value, and the only reader of the process environment.

A wrong or missing required value stops the process with a message that names it. Values marked secret are never shown:
``Config.redacted()`` is what commands and logs may print.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import environ

TENANT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
DriverName = Literal["local", "kubernetes", "fake", "none"]
_SECRET = frozenset({"database_url", "redis_url", "secret_key", "keyring"})


class ConfigError(Exception):
    """A setting is missing or wrong; the text names the variable and what it takes."""


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting read at start. Durations are in seconds."""

    tenant_id: str
    database_url: str
    redis_url: str
    secret_key: str
    keyring: str
    driver: DriverName
    data_dir: Path
    virtual_engine: str
    public_url: str
    engine_url: str
    egress_url: str
    debug: bool
    # How often beat looks; each period trades latency of the safety net against idle work.
    idle_scan_seconds: float
    outbox_drain_seconds: float
    sweep_seconds: float
    # A row of the outbox younger than this is left to the hand-over after its commit.
    outbox_grace_seconds: float
    stale_row_seconds: float
    start_deadline_seconds: float
    start_wait_seconds: float
    waiting_calls: int
    """Requests of one process that may wait for long work at the same time: half of its threads."""
    pool_size: int

    def redacted(self) -> dict[str, Any]:
        """All settings for people; secret ones only as set or not."""
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: ("set" if value else "missing") if name in _SECRET else value for name, value in shown.items()}


def load(environment: dict[str, str] | None = None) -> Config:
    """Read and check every setting; raises :class:`ConfigError` naming the first that is wrong."""
    env = environ.Env()
    if environment is not None:
        env.ENVIRON = environment
    data_dir = Path(env.str("NYLORUN_DATA_DIR", "data")).absolute()
    public_url = env.str("NYLORUN_PUBLIC_URL", "http://127.0.0.1:8000").rstrip("/")
    config = Config(
        tenant_id=env.str("TENANT_ID", "local"),
        database_url=_required(env, "DATABASE_URL"),
        redis_url=_required(env, "REDIS_URL"),
        secret_key=_required(env, "SECRET_KEY"),
        keyring=_required(env, "NYLORUN_KEYRING"),
        driver=env.str("NYLORUN_DRIVER", "local"),
        data_dir=data_dir,
        virtual_engine=env.str("NYLORUN_VIRTUAL_ENGINE", f"unix:{data_dir}/run/engine.sock"),
        public_url=public_url,
        engine_url=env.str("NYLORUN_ENGINE_URL", public_url).rstrip("/"),
        egress_url=env.str("NYLORUN_EGRESS_URL", "http://127.0.0.1:3128").rstrip("/"),
        debug=env.bool("NYLORUN_DEBUG", False),
        idle_scan_seconds=_seconds(env, "NYLORUN_IDLE_SCAN_SECONDS", 15, 0.2, 300),
        outbox_drain_seconds=_seconds(env, "NYLORUN_OUTBOX_DRAIN_SECONDS", 30, 0.2, 300),
        sweep_seconds=_seconds(env, "NYLORUN_SWEEP_SECONDS", 60, 0.5, 600),
        outbox_grace_seconds=_seconds(env, "NYLORUN_OUTBOX_GRACE_SECONDS", 30, 0, 600),
        stale_row_seconds=_seconds(env, "NYLORUN_STALE_ROW_SECONDS", 60, 1, 3600),
        start_deadline_seconds=_seconds(env, "NYLORUN_START_DEADLINE_SECONDS", 300, 1, 3600),
        start_wait_seconds=_seconds(env, "NYLORUN_START_WAIT_SECONDS", 120, 1, 600),
        waiting_calls=_whole(env, "NYLORUN_WAITING_CALLS", 64, 1, 10_000),
        pool_size=_whole(env, "NYLORUN_POOL_SIZE", 12, 2, 500),
    )
    _check(config)
    return config


@lru_cache(maxsize=1)
def current() -> Config:
    """The settings of this process."""
    return load()


def _check(config: Config) -> None:
    if TENANT.fullmatch(config.tenant_id) is None:
        raise ConfigError(f"TENANT_ID must match {TENANT.pattern}; it is {config.tenant_id!r}.")
    if config.driver not in get_args(DriverName):
        raise ConfigError(f"NYLORUN_DRIVER must be one of {', '.join(get_args(DriverName))}; it is {config.driver!r}.")
    if not config.database_url.startswith(("postgres://", "postgresql://")):
        raise ConfigError("DATABASE_URL must be a postgresql:// address.")
    if not config.redis_url.startswith(("redis://", "rediss://", "redis+socket://", "unix://")):
        raise ConfigError("REDIS_URL must be a redis:// address.")
    for name, value in (("NYLORUN_PUBLIC_URL", config.public_url), ("NYLORUN_ENGINE_URL", config.engine_url)):
        if not value.startswith(("http://", "https://")):
            raise ConfigError(f"{name} must be an http:// or https:// address; it is {value!r}.")


def _required(env: Any, name: str) -> str:
    value = env.str(name, "")
    if not value:
        raise ConfigError(f"{name} is missing: set it in the environment of this process.")
    return str(value)


def _seconds(env: Any, name: str, default: float, low: float, high: float) -> float:
    return float(_bounded(env, env.float, name, default, low, high))


def _whole(env: Any, name: str, default: int, low: int, high: int) -> int:
    return int(_bounded(env, env.int, name, default, low, high))


def _bounded(env: Any, read: Any, name: str, default: float, low: float, high: float) -> float:
    try:
        value = read(name, default)
    except ValueError as error:
        raise ConfigError(f"{name} must be a number from {low} to {high}.") from error
    if not low <= value <= high:
        raise ConfigError(f"{name} must be from {low} to {high}; it is {value}.")
    return float(value)
