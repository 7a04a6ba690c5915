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

HOST = "api.example.com"
BOX = {"kind": "pod", "resources": {"cpus": 1, "memory": "256MiB"}, "network": {"allow": [HOST]}}
FETCH = (
    f"""python3 -c 'import urllib.request; print(urllib.request.urlopen("https://{HOST}/v1/hello").read().decode())'"""
)
# The search is in two parts, so that it does not hold what it looks for.
LOOK = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; grep -rs '%s''%s' /workspace /tmp /run /harness; true"


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
    value = secrets.token_urlsafe(24)
    settings = tour.client.expect(200, "GET", "/v1/tenant/sandbox")
    with _server() as (via, seen):
        tour.client.expect(200, "PUT", "/v1/tenant/sandbox", _with_via(settings, via))
        tour.client.expect(201, "PUT", "/v1/environment-manifests/demo-net", BOX)
        tour.client.expect(201, "PUT", environment_path("demo-net"), {"manifest": "demo-net"})
        secret = {"type": "bearer", "url": f"https://{HOST}/v1", "via": via, "value": value}
        tour.client.expect(201, "PUT", environment_path("demo-net", "/secrets/API_KEY"), secret)
        try:
            told = _use(tour, "demo-net", value, seen)
            forked = tour.client.expect(201, "POST", environment_path("demo-net", "/fork"), {"id": "demo-net-fork"})
            _use(tour, "demo-net-fork", value, seen)
        finally:
            tour.client.expect(200, "PUT", "/v1/tenant/sandbox", _asked(settings))
            for id in ("demo-net", "demo-net-fork"):
                tour.client.expect(200, "DELETE", environment_path(id, "?force=true"))
    tour.wait("their volumes are gone", lambda: len(list((tour.folder / "pods").glob("sbx-*"))) == 1)
    return f"the server got it, the pod sees {told}; the fork carried {forked['plan']['secrets']['copied']}"


def _use(tour: Tour, id: str, value: str, seen: list[str | None]) -> str:
    """Let a program of this pod use the Secret, and look for it inside; what its variable holds."""
    before = len(seen)
    if tour.bash(id, FETCH).strip() != "hello" or seen[before:] != [f"Bearer {value}"]:
        raise NotSeen(f"the server of {id} got {len(seen) - before} requests, not one with the Secret")
    found = tour.bash(id, LOOK % (value[:8], value[8:]))
    if value in found:
        raise NotSeen(f"{id} can see the Secret")
    refused = tour.bash(id, FETCH.replace(HOST, "elsewhere.example.com") + " 2>&1 | tail -1")
    if "403" not in refused:
        raise NotSeen(f"a host outside the list answered {refused!r}")
    tour.wait("the refusal is on record", lambda: "egress" in tour.events(id))
    return tour.bash(id, "printf %s $API_KEY")


def _with_via(settings: dict[str, Any], via: str) -> dict[str, Any]:
    asked = _asked(settings)
    return {**asked, "limits": {**asked.get("limits", {}), "via": [via]}}


def _asked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as they were asked for: the demo changes none but what it says."""
    return dict(settings.get("config") or {})
