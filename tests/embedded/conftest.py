"""Fixtures of the one-machine frame. None of these tests needs Django or the database of the other suites."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.asked import VALUE, Server


@pytest.fixture
def free_port() -> int:
    """A port on 127.0.0.1 that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An API that the environment names."""
    made = Server()
    monkeypatch.setenv("NYLORUN_URL", made.url)
    monkeypatch.setenv("NYLORUN_API_KEY", "key")
    yield made
    made.close()


@pytest.fixture
def value(tmp_path: Path) -> str:
    """A file that holds the value and one newline."""
    (tmp_path / "value").write_text(VALUE + "\n")
    return str(tmp_path / "value")
