"""A gate and the servers behind it, for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gate.sites import Site, site
from tests.gate.support import HOST, OTHER, PUBLIC, World


@pytest.fixture
def world() -> Iterator[World]:
    """A gate with the production limits."""
    made = World()
    yield made
    made.close()


@pytest.fixture
def api_site(world: World) -> Iterator[Site]:
    """The real server of the bound host."""
    with site(world.certificates.server(HOST)) as made:
        world.internet.servers[PUBLIC, 443] = made.port
        yield made


@pytest.fixture
def other_site(world: World) -> Iterator[Site]:
    """The real server of an allowed host without a Secret."""
    with site(world.certificates.server(OTHER)) as made:
        world.internet.names[OTHER] = [["198.41.0.4"]]
        world.internet.servers["198.41.0.4", 443] = made.port
        yield made


@pytest.fixture
def mirror(world: World) -> Iterator[Site]:
    """A plain HTTP server of an allowed host."""
    with site() as made:
        world.internet.names["mirror.example.org"] = [["198.41.0.5"]]
        world.internet.servers["198.41.0.5", 80] = made.port
        yield made
