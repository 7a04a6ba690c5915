"""The door behind the real server: raw targets, repeated headers and unread bodies as gunicorn hands them on."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from nylorun.access.principals import create_application
from nylorun.kernel.clock import monotonic, pause
from tests.support.client import Api

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[2]


class Server:
    """One gunicorn process on a port of its own."""

    def __init__(self, port: int, key: str) -> None:
        self.port, self.key = port, key

    def raw(self, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """Send these bytes as they are; one answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as sent:
            lines = f"{head}\r\nHost: x\r\nAuthorization: Bearer {self.key}\r\nConnection: close\r\n\r\n"
            sent.sendall(lines.encode("latin-1") + body)
            answer = http.client.HTTPResponse(sent, method=head.split(" ", 1)[0])
            answer.begin()
            return answer.status, {name: value for name, value in answer.getheaders()}, answer.read()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    key = create_application("over-the-wire")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    parameters = connection.get_connection_params()
    url = f"postgresql://{parameters.get('user', '')}@/{parameters['dbname']}?host={parameters['host']}"
    arguments = [
        f"--bind=127.0.0.1:{port}",
        "--config=python:nylorun.access.gunicorn",
        "--worker-class=nylorun.http.server.Worker",
    ]
    arguments += ["--threads=4", "--no-control-socket", "--log-level=warning"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *arguments, "nylorun.wsgi:application"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "nylorun.settings.prod"},
        stderr=(tmp_path / "log").open("wb"),
    )
    try:
        deadline = monotonic() + 60
        while True:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert monotonic() < deadline, (tmp_path / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                pause(0.05)
        yield Server(port, key)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def code(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["code"]


def test_the_door_behind_the_server(server: Server) -> None:
    """E-32, E-169, E-222, E-223: what only a real server can show, in one start of it."""
    # An encoded slash stays one segment, and a decoded one stays two: neither is a route of /v1/me.
    assert code(server.raw("GET /v1%2Fme HTTP/1.1")) == (404, "not_found")
    status, headers, body = server.raw("GET /v1/me HTTP/1.1")
    assert (status, json.loads(body)["via"], headers["Nylorun-Protocol"]) == (200, "application", "16")
    assert server.raw("GET http://x/v1/me HTTP/1.1")[0] == 200
    assert code(server.raw("GET /v1/me?%zz HTTP/1.1")) == (400, "invalid_request")
    # HEAD has the length of GET and no byte.
    status, headers, nothing = server.raw("HEAD /v1/me HTTP/1.1")
    assert (status, headers["Content-Length"], nothing) == (200, str(len(body)), b"")
    # A repeated Subject is told from one that holds a comma.
    scopes = "\r\nNylorun-Scopes: sessions:own"
    comma = server.raw(f"GET /v1/me HTTP/1.1\r\nNylorun-Subject: Lovelace, Ada{scopes}")
    assert json.loads(comma[2])["subject"] == "Lovelace, Ada"
    twice = server.raw(f"GET /v1/me HTTP/1.1\r\nNylorun-Subject: Lovelace\r\nnylorun-subject: Ada{scopes}")
    assert code(twice) == (400, "subject_invalid")
    # A body nobody reads, stated or chunked, does not become the next request.
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as kept:
        for head in (
            "POST /v1/me HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /",
            "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            kept.sendall(head.encode())
            answer = http.client.HTTPResponse(kept)
            answer.begin()
            answer.read()
    assert answer.status == 200
    # Readiness over the real pool and broker.
    status, _, body = server.raw("GET /readyz HTTP/1.1")
    assert (status, json.loads(body)["status"]) == (200, "ready")


def test_the_test_client_hands_targets_over_as_the_server_does(server: Server) -> None:
    """E-32: what the other tests see is what the server shows."""
    targets = ["/v1/me", "/v1/me/", "/v1%2fme", "//v1/me", "/v1//me", "/v1/./me", "/v1/%6de", "/v1/me%00", "/"]

    def over_the_wire(target: str) -> Any:
        return server.raw(f"GET {target} HTTP/1.1")[0]

    api = Api({"Authorization": f"Bearer {server.key}"})
    assert {target: over_the_wire(target) for target in targets} == {
        target: api.get(target).status for target in targets
    }


def test_a_small_body_that_ends_early_is_told_in_the_order_of_checks(server: Server) -> None:
    """E-223: it is read before the Caller is looked up, and judged after."""
    head = "PUT /v1/environments/slow HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n"
    stranger, caller = f"{head}\r\n", f"{head}Authorization: Bearer {server.key}\r\n\r\n"
    answers = []
    for start in (stranger, caller):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sent:
            sent.sendall(start.encode() + b"{}")
            sent.shutdown(socket.SHUT_WR)
            answer = http.client.HTTPResponse(sent)
            answer.begin()
            answers.append((answer.status, json.loads(answer.read())["code"]))
    assert answers == [(404, "not_found"), (400, "invalid_request")]
