"""Pods for tests: one of its own for a test that changes it, one per file for those that only use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.compute.local.driver import LocalDriver
from tests.compute.local.helpers import INSTALLATION, NAME, SHARED, Client, ControlPlane, joined, own_pods, spec


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    plane = ControlPlane()
    yield plane
    plane.close()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[LocalDriver]:
    driver = LocalDriver(tmp_path / "pods", INSTALLATION)
    with own_pods(driver, NAME):
        yield driver


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalDriver, Path]]:
    """A driver and its folder with one running, joined pod, for a whole file."""
    root = tmp_path_factory.mktemp("shared") / "pods"
    driver, plane = LocalDriver(root, INSTALLATION), ControlPlane()
    with own_pods(driver, SHARED):
        driver.apply(spec(plane.url, name=SHARED, env={"FROM_RECIPE": "a b=c"}))
        joined(driver, plane, SHARED)
        yield driver, root
    plane.close()


@pytest.fixture
def pod(shared: tuple[LocalDriver, Path]) -> Client:
    """A client of the shared pod."""
    address = shared[0].status(SHARED).address
    assert address is not None
    return Client(address, 1)
