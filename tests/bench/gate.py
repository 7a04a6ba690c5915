"""The egress gate beside the same HTTPS without it: ``python -m tests.bench.gate``, or with every other figure.

Server, gate and client are a process each, on this machine's cores; the client is the same on both ways.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from tests.bench.load import p50, timed
from tests.gate.sites import Certificates, site
from tests.gate.support import HOST, OTHER, PUBLIC, World, connect_head, send

PLAIN_HOST = OTHER
ROUNDS = 200
LARGE = 100 << 20
_fork = multiprocessing.get_context("fork")


def gate(bench: Any) -> None:
    """Latency of a request, time for 100 MB, and 64 tunnels at once."""
    with _processes() as way:
        _latency(bench, way)
        _throughput(bench, way)
        _many(bench, way)


class Way:
    """How the client reaches the server: straight, or through the gate."""

    def __init__(self, server: int, proxy: int, direct: ssl.SSLContext, inside: ssl.SSLContext) -> None:
        self._server, self._proxy, self._direct, self._inside = server, proxy, direct, inside

    def straight(self, host: str = HOST) -> ssl.SSLSocket:
        """TLS to the server itself."""
        return self._direct.wrap_socket(_connected(self._server), server_hostname=host)

    def through(self, host: str = HOST) -> ssl.SSLSocket:
        """TLS through a tunnel of the gate; ended there for the bound host, passed on for the other."""
        made = _connected(self._proxy)
        made.sendall(connect_head(f"{host}:443"))
        head = made.recv(4096)
        assert head.startswith(b"HTTP/1.1 200"), head
        return self._inside.wrap_socket(made, server_hostname=host)


def _latency(bench: Any, way: Way) -> None:
    for name, host in (("bound", HOST), ("passed", PLAIN_HOST)):
        straight, through = way.straight(), way.through(host)
        floor, value = _in_turns(lambda: send(straight, "GET", "/"), lambda: send(through, "GET", "/", host=host))  # noqa: B023 called here
        bench.note(f"gate: {name} tunnel, added to a request, p50", value - floor, bar=3)
        floor, value = _in_turns(lambda: _once(way.straight()), lambda: _once(way.through(host), host))  # noqa: B023 called here
        bench.note(f"gate: {name} tunnel, added to connection and request, p50", value - floor, bar=3)


def _throughput(bench: Any, way: Way) -> None:
    for name, host, path in (
        ("bound", HOST, "/large"),
        ("bound, chunked", HOST, "/large_chunked"),
        ("passed", PLAIN_HOST, "/large"),
    ):
        floors, values = [], []
        for _ in range(7):
            floors.append(timed(lambda: _download(way.straight(), path)))  # noqa: B023 called here
            values.append(timed(lambda: _download(way.through(host), path, host)))  # noqa: B023 called here
        bench.note(f"gate: 100 MB down, {name}", p50(values), floor=p50(floors), bar=2)
    floors, values = [], []
    for _ in range(7):
        floors.append(timed(lambda: _upload(way.straight())))
        values.append(timed(lambda: _upload(way.through())))
    bench.note("gate: 100 MB up, bound", p50(values), floor=p50(floors), bar=2)


def _many(bench: Any, way: Way) -> None:
    """64 tunnels, each with 20 requests, beside the same without the gate."""
    floor = timed(lambda: _at_once(way.straight))
    value = timed(lambda: _at_once(way.through))
    bench.note("gate: 64 tunnels at once, 20 requests each", value, floor=floor, bar=4)


def _in_turns(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    first, second = [], []
    for _ in range(ROUNDS):
        first.append(timed(one))
        second.append(timed(other))
    return p50(first), p50(second)


def _once(made: ssl.SSLSocket, host: str = HOST) -> None:
    with made:
        assert send(made, "GET", "/", host=host).status == 200


def _download(made: ssl.SSLSocket, path: str, host: str = HOST) -> None:
    buffer, received = bytearray(1 << 18), 0
    with made:
        made.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        while received < LARGE:
            count = made.recv_into(buffer)
            assert count, "cut off"
            received += count


def _upload(made: ssl.SSLSocket) -> None:
    block = bytes(1 << 20)
    with made:
        made.sendall(f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {LARGE}\r\n\r\n".encode())
        for _ in range(LARGE >> 20):
            made.sendall(block)
        assert made.recv(4096).startswith(b"HTTP/1.1 200")


def _at_once(connect: Callable[[], ssl.SSLSocket]) -> None:
    ready = threading.Barrier(64)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with connect() as made:
                ready.wait(30)
                for _ in range(20):
                    assert send(made, "GET", "/").status == 200
        except BaseException as error:  # noqa: BLE001 shown by the thread that started this one
            ready.abort()
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def _connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


@contextmanager
def _processes() -> Iterator[Way]:
    certificates = Certificates()
    server_end, proxy_end = _fork.Pipe(), _fork.Pipe()
    server = _fork.Process(target=_serve, args=(certificates, server_end[1]), daemon=True)
    server.start()
    port = server_end[0].recv()
    proxy = _fork.Process(target=_guard, args=(certificates, port, proxy_end[1]), daemon=True)
    proxy.start()
    gate_port, authority = proxy_end[0].recv()
    inside = certificates.trust()
    inside.load_verify_locations(cadata=authority.decode())
    try:
        yield Way(port, gate_port, certificates.trust(), inside)
    finally:
        for process in (proxy, server):
            process.terminate()
            process.join()


def _serve(certificates: Certificates, end: Connection) -> None:
    context = certificates.server(HOST)
    context.sni_callback = lambda tls, name, _: setattr(tls, "context", certificates.server(name or HOST))
    with site(context) as made:
        end.send(made.port)
        threading.Event().wait()


def _guard(certificates: Certificates, port: int, end: Connection) -> None:
    world = World(certificates=certificates)
    world.internet.names[PLAIN_HOST] = [[PUBLIC]]
    world.internet.servers[PUBLIC, 443] = port
    end.send((world.port, world.authority))
    threading.Event().wait()


def main() -> int:
    """These figures alone."""
    from tests.bench.__main__ import Bench

    gate(Bench(None, "", {}))  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main())
