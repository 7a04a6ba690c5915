"""Probes against small servers that answer well, badly, or not at all."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nylorun.embedded.probes import engine_ready, http_status, marked_ready


@contextmanager
def answering(
    family: socket.AddressFamily, address: tuple[str, int] | str, answer: Callable[[bytes], bytes]
) -> Iterator[socket.socket]:
    """A server that reads once, answers once and closes; for one connection."""
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer(connection.recv(65536)))

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize(("key", "header"), [(None, None), ("k" * 64, b"Authorization: Bearer " + b"k" * 64)])
def test_the_status_of_the_api_is_asked_with_the_key(key: str | None, header: bytes | None) -> None:
    asked: list[bytes] = []

    def answer(request: bytes) -> bytes:
        asked.append(request)
        return b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"

    with answering(socket.AF_INET, ("127.0.0.1", 0), answer) as listener:
        assert http_status(listener.getsockname()[1], "/readyz", key) == 503
    assert asked[0].startswith(b"GET /readyz ")
    assert [line for line in asked[0].split(b"\r\n") if line.startswith(b"Auth")] == ([header] if header else [])


def test_the_api_has_no_status_when_nobody_listens_or_it_talks_nonsense(free_port: int) -> None:
    assert http_status(free_port, "/readyz") is None
    with answering(socket.AF_INET, ("127.0.0.1", 0), lambda request: b"nonsense\r\n\r\n") as listener:
        assert http_status(listener.getsockname()[1], "/readyz") is None


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + struct.pack(">I", len(payload)) + payload


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (frame(b"A") + frame(b"R", b'{"kind":"completed","output":{}}'), True),
        (frame(b"R", b"{}"), True),
        (frame(b"N", b'{"reason":"busy"}'), False),
        (frame(b"A"), False),
        (b"A\0", False),
        (b"", False),
    ],
)
def test_the_engine_is_ready_when_it_completes_a_ping(tmp_path: Path, answer: bytes, ready: bool) -> None:
    asked: list[bytes] = []

    def reply(request: bytes) -> bytes:
        asked.append(request)
        return answer

    path = tmp_path / "e.sock"
    with answering(socket.AF_UNIX, str(path), reply):
        assert engine_ready(path) is ready
    assert asked[0].startswith(b"H")
    assert b'"op": "ping"' in asked[0]
    assert asked[0].endswith(frame(b"Z"))


def test_the_engine_is_not_ready_without_its_socket(tmp_path: Path) -> None:
    assert not engine_ready(tmp_path / "e.sock")


def test_a_mark_of_an_earlier_process_does_not_count(tmp_path: Path) -> None:
    mark = tmp_path / "worker.ready"
    assert not marked_ready(mark, 10)
    mark.write_text("9")
    assert not marked_ready(mark, 10)
    mark.write_text("10")
    assert marked_ready(mark, 10)
