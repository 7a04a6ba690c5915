"""The installation's settings: one frozen, typed, checked value, and the only reader of the process environment.

A wrong or missing required value stops the process with a message of one line that names it and what it takes. Values
are taken as they stand: nothing is cut off, guessed or replaced. Values marked secret are never shown:
``Config.redacted()`` is what commands and logs may print.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import parse_qs, quote, urlsplit

from nylorun.kernel.keys import KeyringError, read_keys

TENANT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
DriverName = Literal["local", "kubernetes", "fake", "none"]
_ENGINE = re.compile(r"unix:.+|.+:[0-9]{1,5}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")
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
    blobs: str
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
    worker: str
    """A name that only one live process bears at a time, for a worker whose supervisor sees to that; else empty."""
    # gunicorn's, under `nylorun up`.
    api_workers: int
    api_threads: int

    def redacted(self) -> dict[str, Any]:
        """All settings for people; secret ones only as set or not."""
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: ("set" if value else "missing") if name in _SECRET else value for name, value in shown.items()}


def load(environment: Mapping[str, str] | None = None) -> Config:
    """Read and check every setting; raises :class:`ConfigError` naming the first that is wrong."""
    env = _Reader(os.environ if environment is None else environment)
    data_dir = Path(env.text("NYLORUN_DATA_DIR", "data")).absolute()
    public_url = env.text("NYLORUN_PUBLIC_URL", "http://127.0.0.1:8000").rstrip("/")
    config = Config(
        tenant_id=env.text("TENANT_ID", "local"),
        database_url=env.required("DATABASE_URL"),
        redis_url=env.required("REDIS_URL"),
        secret_key=env.required("SECRET_KEY"),
        keyring=env.required("NYLORUN_KEYRING"),
        driver=env.driver("NYLORUN_DRIVER", "local"),
        data_dir=data_dir,
        blobs=env.text("NYLORUN_BLOBS", f"file:{quote(str(data_dir))}/blobs"),
        virtual_engine=env.text("NYLORUN_VIRTUAL_ENGINE", f"unix:{data_dir}/run/engine.sock"),
        public_url=public_url,
        engine_url=env.text("NYLORUN_ENGINE_URL", public_url).rstrip("/"),
        egress_url=env.text("NYLORUN_EGRESS_URL", "http://127.0.0.1:3128").rstrip("/"),
        debug=env.flag("NYLORUN_DEBUG"),
        idle_scan_seconds=env.seconds("NYLORUN_IDLE_SCAN_SECONDS", 15, 0.2, 300),
        outbox_drain_seconds=env.seconds("NYLORUN_OUTBOX_DRAIN_SECONDS", 30, 0.2, 300),
        sweep_seconds=env.seconds("NYLORUN_SWEEP_SECONDS", 60, 0.5, 600),
        outbox_grace_seconds=env.seconds("NYLORUN_OUTBOX_GRACE_SECONDS", 30, 0, 600),
        stale_row_seconds=env.seconds("NYLORUN_STALE_ROW_SECONDS", 60, 1, 3600),
        start_deadline_seconds=env.seconds("NYLORUN_START_DEADLINE_SECONDS", 300, 1, 3600),
        start_wait_seconds=env.seconds("NYLORUN_START_WAIT_SECONDS", 120, 1, 600),
        waiting_calls=env.whole("NYLORUN_WAITING_CALLS", 64, 1, 10_000),
        pool_size=env.whole("NYLORUN_POOL_SIZE", 12, 2, 500),
        worker=env.text("NYLORUN_WORKER", ""),
        api_workers=env.whole("NYLORUN_API_WORKERS", 1, 1, 64),
        api_threads=env.whole("NYLORUN_API_THREADS", 128, 2, 4096),
    )
    _check(config)
    return config


def check(environment: Mapping[str, str]) -> None:
    """Look before anything starts: as :func:`load`, and the keyring can be read. Raises :class:`ConfigError`."""
    settings = load(environment)
    try:
        read_keys(settings.keyring)
    except KeyringError as error:
        raise ConfigError(f"NYLORUN_KEYRING: {error}") from error


@lru_cache(maxsize=1)
def current() -> Config:
    """The settings of this process."""
    return load()


class _Reader:
    """Reads one environment; every fault is a :class:`ConfigError` that names the variable."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str, default: str) -> str:
        return self._environment.get(name, default)

    def required(self, name: str) -> str:
        value = self.text(name, "")
        if not value:
            raise ConfigError(f"{name} is missing: set it in the environment of this process.")
        return value

    def driver(self, name: str, default: DriverName) -> DriverName:
        value = self.text(name, default)
        if value not in get_args(DriverName):
            raise ConfigError(f"{name} must be one of {', '.join(get_args(DriverName))}; it is {value!r}.")
        return cast(DriverName, value)

    def flag(self, name: str) -> bool:
        value = self.text(name, "")
        if value.lower() not in _YES + _NO:
            raise ConfigError(f"{name} must be true or false; it is {value!r}.")
        return value.lower() in _YES

    def seconds(self, name: str, default: float, low: float, high: float) -> float:
        return self._number(float, "a number of seconds", name, default, low, high)

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        return int(self._number(int, "a whole number", name, default, low, high))

    def _number(
        self, read: Callable[[str], float], what: str, name: str, default: float, low: float, high: float
    ) -> float:
        text = self.text(name, str(default))
        try:
            value = read(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ConfigError(f"{name} must be {what} from {low} to {high}; it is {text!r}.")
        return value


def _check(config: Config) -> None:
    if TENANT.fullmatch(config.tenant_id) is None:
        raise ConfigError(f"TENANT_ID must match {TENANT.pattern}; it is {config.tenant_id!r}.")
    if not _is_database(config.database_url):
        raise ConfigError("DATABASE_URL must be of the form postgresql://USER:PASSWORD@HOST:PORT/NAME.")
    if not _is_address(config.redis_url, ("redis", "rediss", "redis+socket", "unix")):
        raise ConfigError("REDIS_URL must be of the form redis://:PASSWORD@HOST:PORT/NUMBER.")
    if _ENGINE.fullmatch(config.virtual_engine) is None:
        raise ConfigError(f"NYLORUN_VIRTUAL_ENGINE must be unix:PATH or HOST:PORT; it is {config.virtual_engine!r}.")
    if not _is_store(config.blobs):
        raise ConfigError(
            "NYLORUN_BLOBS must be file:/FOLDER or s3://BUCKET/PREFIX?endpoint=URL&region=NAME, without credentials."
        )
    addresses = {
        "NYLORUN_PUBLIC_URL": config.public_url,
        "NYLORUN_ENGINE_URL": config.engine_url,
        "NYLORUN_EGRESS_URL": config.egress_url,
    }
    for name, value in addresses.items():
        if not _is_address(value, ("http", "https")) or not urlsplit(value).hostname:
            raise ConfigError(f"{name} must be an http:// or https:// address; it is {value!r}.")


def _is_address(value: str, schemes: tuple[str, ...]) -> bool:
    """Whether it is a URL of one of the schemes, the ports of its hosts being ports."""
    scheme, mark, _ = value.partition("://")
    try:
        hosts = urlsplit(value).netloc.rpartition("@")[2].split(",")
        ports = [urlsplit(f"//{host}").port for host in hosts]
    except ValueError:
        return False
    return scheme in schemes and bool(mark) and 0 not in ports


def _is_database(value: str) -> bool:
    """Whether it is an address that names a database: by its name, or by a service of libpq."""
    if not _is_address(value, ("postgres", "postgresql")):
        return False
    parts = urlsplit(value)
    return bool(parts.path.strip("/")) or "service" in parse_qs(parts.query)


def _is_store(value: str) -> bool:
    """Whether it names a folder by its whole path, or a bucket with nothing but a prefix, an endpoint and a region."""
    try:
        parts = urlsplit(value)
        options = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        return False
    if parts.scheme == "file":
        return value.startswith("file:/") and not parts.netloc and len(parts.path) > 1 and not parts.query
    endpoints = options.pop("endpoint", [])
    options.pop("region", None)
    known = not options and all(_is_address(endpoint, ("http", "https")) for endpoint in endpoints)
    return parts.scheme == "s3" and _BUCKET.fullmatch(parts.netloc) is not None and known
