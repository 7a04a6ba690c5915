"""One server for the tests that leave it alive, and a maker of servers for those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compute.virtual.support import Server, Workspace


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share; each takes a workspace of its own."""
    shared = Server(tmp_path_factory.mktemp("engine"))
    shared.start()
    yield shared
    assert shared.stop() == 0


@pytest.fixture
def workspace(server: Server) -> Workspace:
    """A new workspace, not made yet."""
    return server.workspace()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server of the test's own, with the given options."""
    started: list[Server] = []

    def begin(*options: str) -> Server:
        own = Server(tmp_path, *options)
        own.start()
        started.append(own)
        return own

    yield begin
    for own in started:
        if own.process is not None and own.process.poll() is None:
            own.stop()
