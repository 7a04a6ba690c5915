"""Fixtures of the one-machine frame. None of these tests needs Django or the database of the other suites."""

import socket

import pytest


@pytest.fixture
def free_port() -> int:
    """A port on 127.0.0.1 that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
