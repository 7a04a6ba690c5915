"""Settings: read as they stand, checked at start, refused in one line that names the variable."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from nylorun import config
from nylorun.config import ConfigError

KEY = base64.b64encode(b"1" * 32).decode()
NEEDED = {
    "DATABASE_URL": "postgresql://user:secret-word@host:5432/name",
    "REDIS_URL": "redis://:secret-word@host:6379/0",
    "SECRET_KEY": "$ecret-word",
    "NYLORUN_KEYRING": KEY,
}


def test_what_is_needed_is_enough_and_taken_as_it_stands() -> None:
    found = config.load(NEEDED)
    assert (found.secret_key, found.keyring) == ("$ecret-word", KEY)
    assert (found.tenant_id, found.driver, found.debug) == ("local", "local", False)
    assert (found.sweep_seconds, found.pool_size, found.api_threads) == (60, 12, 128)
    assert found.virtual_engine == f"unix:{Path('data').absolute()}/run/engine.sock"


@pytest.mark.parametrize("name", sorted(NEEDED))
@pytest.mark.parametrize("value", [None, ""])
def test_what_is_missing_is_named(name: str, value: str | None) -> None:
    given = {key: text for key, text in NEEDED.items() if key != name}
    with pytest.raises(ConfigError, match=f"^{name} is missing"):
        config.load(given if value is None else given | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TENANT_ID", "Local"),
        ("DATABASE_URL", "mysql://user:secret-word@host/name"),
        ("DATABASE_URL", "postgresql://user:secret-word@host:port/name"),
        ("DATABASE_URL", "postgresql://user:secret-word@host:99999/name"),
        ("DATABASE_URL", "postgresql://user:secret-word@host"),
        ("DATABASE_URL", "postgresql:/name"),
        ("REDIS_URL", "host:6379"),
        ("REDIS_URL", "redis://:secret-word@host:port/0"),
        ("NYLORUN_DRIVER", "docker"),
        ("NYLORUN_VIRTUAL_ENGINE", "engine.sock"),
        ("NYLORUN_PUBLIC_URL", "localhost:8000"),
        ("NYLORUN_ENGINE_URL", "http://"),
        ("NYLORUN_EGRESS_URL", "http://host:port"),
        ("NYLORUN_DEBUG", "maybe"),
        ("NYLORUN_SWEEP_SECONDS", "5m"),
        ("NYLORUN_SWEEP_SECONDS", "0.4"),
        ("NYLORUN_SWEEP_SECONDS", "nan"),
        ("NYLORUN_SWEEP_SECONDS", ""),
        ("NYLORUN_START_WAIT_SECONDS", "601"),
        ("NYLORUN_POOL_SIZE", "2.5"),
        ("NYLORUN_API_WORKERS", "two"),
        ("NYLORUN_API_THREADS", "1"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_that_names_it_and_shows_no_secret(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config.load(NEEDED | {name: value})
    text = str(refused.value)
    assert text.startswith(f"{name} must ")
    assert "\n" not in text
    assert "secret-word" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "postgresql://nylorun@/nylorun?host=/run/postgres"),
        ("DATABASE_URL", "postgres://one:5432,two:5433/name"),
        ("DATABASE_URL", "postgresql://?service=mine"),
        ("REDIS_URL", "unix:///run/redis.sock"),
        ("NYLORUN_VIRTUAL_ENGINE", "127.0.0.1:7000"),
        ("NYLORUN_DEBUG", "True"),
        ("NYLORUN_DEBUG", ""),
        ("NYLORUN_SWEEP_SECONDS", "0.5"),
        ("NYLORUN_OUTBOX_GRACE_SECONDS", "0"),
        ("NYLORUN_PUBLIC_URL", "https://nylorun.example:8443/base/"),
    ],
)
def test_every_form_that_the_parts_understand_is_taken(name: str, value: str) -> None:
    config.load(NEEDED | {name: value})


@pytest.mark.parametrize("keyring", ["x", ",", "file:/nowhere", "file:/", "file:{binary}"])
def test_a_keyring_that_cannot_be_read_is_found_before_anything_starts(tmp_path: Path, keyring: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    config.check(NEEDED)
    with pytest.raises(ConfigError, match=r"^NYLORUN_KEYRING: [^\n]+$"):
        config.check(NEEDED | {"NYLORUN_KEYRING": keyring.format(binary=tmp_path / "binary")})


def test_what_may_be_printed_shows_no_secret() -> None:
    shown = config.load(NEEDED).redacted()
    assert shown["keyring"] == shown["database_url"] == "set"
    assert "secret-word" not in str(shown)
