"""One server for the tests that leave it alive, and a maker of servers for those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compute.virtual.outside import ELSEWHERE, Out
from tests.compute.virtual.support import Server, Workspace
from tests.gate.sites import Site
from tests.gate.support import HOST, OTHER, PUBLIC, World


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


@pytest.fixture
def out(workspace: Workspace) -> Iterator[Out]:
    """A workspace with a way out, to a gate of its own."""
    world = World()
    with ExitStack() as closing:
        closing.callback(world.close)
        yield Out(workspace, world, closing)


@pytest.fixture
def bound(out: Out) -> Site:
    """The server that a Secret is bound to."""
    return out.serve(HOST, PUBLIC)


@pytest.fixture
def other(out: Out) -> Site:
    """A server that is allowed and nothing else: TLS passes through the gate."""
    return out.serve(OTHER, ELSEWHERE)
