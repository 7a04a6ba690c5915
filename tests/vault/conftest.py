"""What the tests of the vault share: an Environment to write to, and processes with other keyrings."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator

import pytest

from nylorun import config
from nylorun.access import keyring
from tests.support.client import Api

URL = "/v1/environments/demo"
ONE, TWO = bytes(range(32)), b"2" * 32
Use = Callable[..., None]


@pytest.fixture
def demo(api: Api) -> Api:
    """An Environment without Slots."""
    assert api.put(URL, {"kind": "none"}).status == 201
    return api


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    """Go on as a process that was started with these keys, the first active, for this Tenant."""

    def start_with(*keys: bytes, tenant: str | None = None) -> None:
        text = ",".join(base64.b64encode(key).decode() for key in keys)
        settings = config.current()
        changed = dataclasses.replace(settings, keyring=text, tenant_id=tenant or settings.tenant_id)
        monkeypatch.setattr(config, "current", lambda: changed)
        keyring.current.cache_clear()

    yield start_with
    monkeypatch.undo()
    keyring.current.cache_clear()
