"""Real servers for the gate to reach: HTTPS under a test authority of their own, and plain HTTP."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nylorun.kernel.clock import utc_now
from vault.gate.authority import Authority, new_authority

BLOCK = b"x" * (1 << 20)


class Certificates:
    """The authority that the public internet of a test trusts."""

    def __init__(self) -> None:
        self._key, self._certificate = new_authority(utc_now())
        self._authority = Authority(self._key, self._certificate, lambda: utc_now() - timedelta(minutes=1))

    def server(self, host: str) -> ssl.SSLContext:
        """What a server for ``host`` shows."""
        return self._authority.context(host)

    def trust(self) -> ssl.SSLContext:
        """What a client checks with, as the real one is made."""
        context = ssl.create_default_context(cadata=self._certificate.decode())
        context.set_alpn_protocols(["http/1.1"])
        return context


@dataclass
class Seen:
    """One request as a server saw it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass
class Site:
    """A running server and what reached it."""

    port: int
    server: ThreadingHTTPServer
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    certificate: bytes = b""
    open: list[Any] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    @property
    def last(self) -> Seen:
        """The last request."""
        return self.seen[-1]

    def drop(self) -> None:
        """Close every connection at once."""
        for one in self.open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.open.clear()


class _Handler(BaseHTTPRequestHandler):
    """Answers by path; everything it is asked is kept."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    site: Site

    def setup(self) -> None:
        super().setup()
        self.site.connections += 1
        self.site.open.append(self.request)

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""

    def _any(self) -> None:
        if self.path == "/early":
            self.close_connection = True
            self._send(413, b"too large")
            return
        body, size, digest = self._body()
        self.site.seen.append(Seen(self.command, self.path, self.headers.items(), body))
        act = getattr(self, "_" + self.path.split("?")[0].strip("/").split("/")[-1], self._ok)
        act(size, digest)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = do_PATCH = do_OPTIONS = _any

    def _body(self) -> tuple[bytes, int, str]:
        digest, size, kept = hashlib.sha256(), 0, b""
        for piece in self._pieces():
            digest.update(piece)
            size += len(piece)
            kept = (kept + piece)[:4096]
        return kept, size, digest.hexdigest()

    def _pieces(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding") == "chunked":
            while length := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(length)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read(min(left, 1 << 20))
            left -= len(piece)
            yield piece

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _ok(self, size: int, digest: str) -> None:
        self._send(200, f"{size} {digest}".encode())

    def _redirect(self, size: int, digest: str) -> None:
        self._send(302, b"", Location="https://elsewhere.example.org/taken")

    def _empty(self, size: int, digest: str) -> None:
        self.send_response(204)
        self.end_headers()

    def _unchanged(self, size: int, digest: str) -> None:
        self.send_response(304)
        self.send_header("Content-Length", "1000")
        self.end_headers()

    def _last(self, size: int, digest: str) -> None:
        self.close_connection = True
        self._send(200, b"bye", Connection="close")

    def _until_close(self, size: int, digest: str) -> None:
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"all there is")

    def _chunked(self, size: int, digest: str) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5;a=b\r\nfirst\r\n6\r\nsecond\r\n0\r\nX-Sum: 11\r\n\r\n")

    def _unasked(self, size: int, digest: str) -> None:
        """One answer, and another to a question that nobody put."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood" * 2)

    def _wait(self, size: int, digest: str) -> None:
        """Answers when the test says so."""
        self.site.release.wait(20)
        self._send(200, b"waited")

    def _large(self, size: int, digest: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(100 * len(BLOCK)))
        self.end_headers()
        for _ in range(100):
            self.wfile.write(BLOCK)

    def _large_chunked(self, size: int, digest: str) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(100):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(BLOCK), BLOCK))
        self.wfile.write(b"0\r\n\r\n")


class _Server(ThreadingHTTPServer):
    """One thread a connection, each with its own handshake, and a backlog for many at once."""

    daemon_threads = True
    request_queue_size = 512
    context: ssl.SSLContext | None = None

    def finish_request(self, request: Any, address: Any) -> None:
        if self.context is None:
            super().finish_request(request, address)
            return
        with self.context.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, address)
            wrapped.unwrap()

    def handle_error(self, request: Any, address: Any) -> None:
        """A client that hangs up is no fault of the test."""


def _shown(context: ssl.SSLContext) -> bytes:
    """The certificate that this side of a handshake shows."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    one, two = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(one, two), context.wrap_bio(two, one, server_side=True)]
    for side in (*sides, sides[0]):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return sides[0].getpeercert(binary_form=True) or b""


@contextmanager
def site(context: ssl.SSLContext | None = None) -> Iterator[Site]:
    """Serve on a port of this machine; with TLS when there is a context."""
    handler = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    server.context = context
    made = Site(int(server.server_address[1]), server)
    if context is not None:
        made.certificate = _shown(context)
    handler.site = made  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
