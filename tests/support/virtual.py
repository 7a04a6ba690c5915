"""A real virtual Engine for the tests of one module, and an API whose virtual workspaces it serves: two fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nylorun import config
from nylorun.tenant.store import installation_id
from tests.compute.virtual.support import Server
from tests.support.client import Api


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real Engine for these tests; every test has workspaces of its own."""
    server = Server(tmp_path_factory.mktemp("engine"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def served(api: Api, engine: Server, monkeypatch: pytest.MonkeyPatch) -> Api:
    """An API whose virtual workspaces are served."""
    real = config.current()
    moved: Any = type("Moved", (), {name: getattr(real, name) for name in real.__slots__})()
    moved.virtual_engine = f"unix:{engine.socket}"
    monkeypatch.setattr(config, "current", lambda: moved)
    installation_id.cache_clear()  # the id of a database that an earlier test emptied
    return api
