"""Large bodies: nothing is held, in either direction, in either framing."""

from __future__ import annotations

import hashlib
import threading

import psutil
import pytest

from tests.gate.sites import BLOCK, Site
from tests.gate.support import HOST, OTHER, World, closed, read_answer

SIZE = 100 * len(BLOCK)


class Memory:
    """The most this process held while the block ran, beyond what it held before. Server and client are in it too."""

    def __enter__(self):
        self._process, self._over = psutil.Process(), threading.Event()
        self._before = self._most = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._over.wait(0.005):
            self._most = max(self._most, self._process.memory_info().rss)

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()

    @property
    def grown(self):
        return self._most - self._before


def download(made, path, host):
    """Read an answer piece by piece; its size, once its bytes were compared."""
    from http.client import HTTPResponse

    made.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    response = HTTPResponse(made, method="GET")
    response.begin()
    size = 0
    while piece := response.read(1 << 16):
        assert piece == BLOCK[: len(piece)]
        size += len(piece)
    return size


@pytest.mark.parametrize("path", ["/large", "/large_chunked"])
@pytest.mark.parametrize("host", [HOST, OTHER])
def test_100_mb_down(world: World, api_site: Site, other_site: Site, host: str, path: str):
    """E-197: every byte arrives and memory stays flat."""
    with world.secure(host) as made, Memory() as memory:
        assert download(made, path, host) == SIZE
    assert memory.grown < 32 << 20


@pytest.mark.parametrize("chunked", [False, True])
def test_100_mb_up(world: World, api_site: Site, chunked: bool):
    """E-197: the server's checksum is that of what was sent."""
    digest = hashlib.sha256()
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {SIZE}"
    with world.secure() as made, Memory() as memory:
        made.sendall(f"POST /ok HTTP/1.1\r\nHost: {HOST}\r\n{framing}\r\n\r\n".encode())
        for _ in range(100):
            digest.update(BLOCK)
            made.sendall(b"%x\r\n%s\r\n" % (len(BLOCK), BLOCK) if chunked else BLOCK)
        made.sendall(b"0\r\n\r\n" if chunked else b"")
        assert read_answer(made).body.decode() == f"{SIZE} {digest.hexdigest()}"
    assert memory.grown < 32 << 20


def test_a_client_that_does_not_read_holds_the_server_back(world: World, api_site: Site):
    """E-197: a slow reader costs a few buffers, not the body."""
    made = world.secure()
    with Memory() as memory:
        made.sendall(f"GET /large HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        made.recv(1)
        tunnel = world.call(lambda: next(iter(world.gate._tunnels._open)))
        world.until(lambda: not tunnel.wires[0]._flowing.is_set() and tunnel.wires[1]._paused)
        held = world.call(lambda: sum(wire._held for wire in tunnel.wires))
    assert held < 2 << 20
    assert memory.grown < 32 << 20


def test_tiny_chunks_leave_room_for_others(world: World, api_site: Site):
    """E-197: a body of single bytes in chunks arrives, and other tunnels are served meanwhile."""
    with world.secure() as made, world.secure() as other:
        made.sendall(f"POST /ok HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        sending = threading.Thread(target=lambda: made.sendall(b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"))
        sending.start()
        other.sendall(f"GET /ok HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert read_answer(other).status == 200
        sending.join()
        assert read_answer(made).body.startswith(b"100000 ")


def test_an_answer_that_comes_early_ends_the_tunnel(world: World, api_site: Site):
    """E-265: it is passed on; what is left of the body is not taken for a request."""
    with world.secure() as made:
        made.sendall(f"POST /early HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1000000\r\n\r\n".encode())
        assert read_answer(made).status == 413
        assert closed(made)
    assert api_site.seen == []
    assert world.rows.recorded == []


def test_a_body_that_is_cut_off_is_not_completed(world: World, api_site: Site):
    """E-265: a sandbox that leaves in the middle of a body leaves nothing behind, and the server no whole request."""
    made = world.secure()
    made.sendall(f"POST /ok HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1000\r\n\r\nhalf".encode())
    world.until(lambda: api_site.connections)
    made.close()
    world.until(lambda: world.gate.connections == 0)
    assert api_site.seen == []
    assert world.rows.recorded == []
