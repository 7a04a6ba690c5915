"""The steps of the tour that are about Secrets: one is used on the wire and seen nowhere else, and goes with a fork.

The tour reaches no host of the internet: the operator's `limits.via` sends the requests to a server of its own.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nylorun.cli.client import environment_path
from nylorun.cli.tour import NotSeen, Tour

HOST, ELSEWHERE = "api.example.com", "elsewhere.example.com"
BOX = {"kind": "pod", "resources": {"cpus": 1, "memory": "256MiB"}, "network": {"allow": [HOST]}}
FETCH = (
    f"""python3 -c 'import urllib.request; print(urllib.request.urlopen("https://{HOST}/v1/hello").read().decode())'"""
)
# Names the files and processes that hold something, in two parts so that the search does not hold what it looks for.
LOOK = "grep -rlasF -e '%s''%s' /workspace /harness /tmp /dev/shm /run /proc/[0-9]*/environ; true"
SHOWN = "nylorun-managed"


@contextmanager
def _server() -> Iterator[tuple[str, list[str | None]]]:
    """A server on this machine: where it is, and the `Authorization` of each request it got."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def on_the_wire(tour: Tour) -> str:
    """A Secret is a header of the request that leaves; the pod sees a placeholder, and reaches no other host."""
    value = secrets.token_hex(24)
    settings = tour.client.expect(200, "GET", "/v1/tenant/sandbox")
    with _server() as (via, seen):
        try:
            tour.client.expect(200, "PUT", "/v1/tenant/sandbox", _with_via(settings["config"], via))
            _make(tour, via, value)
            _use(tour, "demo-net", value, seen)
            forked = tour.client.expect(201, "POST", environment_path("demo-net", "/fork"), {"id": "demo-net-fork"})
            _use(tour, "demo-net-fork", value, seen)
        finally:
            tour.client.expect(200, "PUT", "/v1/tenant/sandbox", settings["config"])
            for id in ("demo-net", "demo-net-fork"):
                tour.client.call("DELETE", environment_path(id, "?force=true"))
    copied = forked["plan"]["secrets"]["copied"]
    if copied != ["API_KEY"] or tour.client.expect(200, "GET", "/v1/tenant/sandbox") != settings:
        raise NotSeen(f"the fork carried {copied}, or the Tenant's settings are others than before")
    tour.wait("their volumes are gone", lambda: len(list((tour.folder / "pods").glob("sbx-*"))) == 1)
    return f"the server got it, the pod sees {SHOWN}; the fork carried {', '.join(copied)}"


def _make(tour: Tour, via: str, value: str) -> None:
    tour.client.expect(201, "PUT", "/v1/environment-manifests/demo-net", BOX)
    tour.client.expect(201, "PUT", environment_path("demo-net"), {"manifest": "demo-net"})
    secret = {"type": "bearer", "url": f"https://{HOST}/v1", "via": via, "value": value}
    tour.client.expect(201, "PUT", environment_path("demo-net", "/secrets/API_KEY"), secret)


def _use(tour: Tour, id: str, value: str, seen: list[str | None]) -> None:
    """Let a program of this pod use the Secret, look for it inside, and ask for a host outside the list."""
    before = len(seen)
    if tour.bash(id, FETCH).strip() != "hello" or seen[before:] != [f"Bearer {value}"]:
        raise NotSeen(f"the server of {id} got {len(seen) - before} requests, not one with the Secret")
    variables = tour.bash(id, "env")
    if value in variables or f"API_KEY={SHOWN}" not in variables.split("\n"):
        raise NotSeen(f"the variables of {id} hold the Secret, or no placeholder")
    if not tour.bash(id, LOOK % (SHOWN[:8], SHOWN[8:])):
        raise NotSeen(f"the search in {id} does not even find the placeholder")
    if places := tour.bash(id, LOOK % (value[:8], value[8:])):
        raise NotSeen(f"{id} holds the Secret in {places}")
    answered = tour.bash(id, FETCH.replace(HOST, ELSEWHERE) + " 2>&1 | tail -1")
    if "403" not in answered:
        raise NotSeen(f"a host outside the list answered {answered!r}")
    tour.wait(f"the refusal of {ELSEWHERE} is an event", lambda: _refused(tour, id) == [(ELSEWHERE, "not_allowed")])


def _refused(tour: Tour, id: str) -> list[tuple[str, str]]:
    """Host and reason of every refusal on record."""
    found = tour.client.expect(200, "GET", environment_path(id, "/events?type=environment.egress"))["events"]
    return [(event["payload"]["host"], event["payload"]["reason"]) for event in found]


def _with_via(config: dict[str, Any], via: str) -> dict[str, Any]:
    """The settings as they were asked for, and this server: the demo changes nothing else."""
    return {**config, "limits": {**config.get("limits", {}), "via": [via]}}
