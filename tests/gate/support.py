"""A gate on a loop of its own, with scripted rows and a scripted internet, and a sandbox's side of its connections.

Names resolve to public addresses and the production rule judges them; only the last step, connecting, is led to a
server of this machine. So every rule is tested as it runs in production.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPResponse
from typing import Any, TypeVar
from uuid import UUID

from nylorun.kernel.clock import utc_now
from tests.gate.sites import Certificates
from vault.gate.addresses import is_public
from vault.gate.authority import Authority, new_authority
from vault.gate.doorkeeper import CannotOpen, Opened, Pass, Refused, Stale, Unavailable, Whose
from vault.gate.limits import Limits
from vault.gate.network import Network, connect_to
from vault.gate.server import Gate
from vault.gate.wire import Wire
from vault.values import Value

T = TypeVar("T")

TOKEN = "egress-token-of-demo"
HOST = "api.example.org"
OTHER = "elsewhere.example.org"
PUBLIC = "93.184.216.34"
WHOSE = Whose("demo", UUID(int=1))
PASS = Pass(WHOSE, epoch=4, allowed=("*.example.org",), bound=frozenset({HOST}))


def bearer(value: str = "s3cret", url: str = f"https://{HOST}", **binding: Any) -> Opened:
    """A Secret of type ``bearer``."""
    return Opened("bearer", {"type": "bearer", "url": url, **binding}, Value.of_text(value))


def header(value: str, hosts: Sequence[str] = (HOST,), **binding: Any) -> Opened:
    """A Secret of type ``environment_secret``."""
    kept = {"type": "environment_secret", "allowedHosts": list(hosts), **binding}
    return Opened("environment_secret", kept, Value.of_text(value))


def headers(values: Mapping[str, str], url: str = f"https://{HOST}", **binding: Any) -> Opened:
    """A Secret of type ``headers``."""
    return Opened("headers", {"type": "headers", "url": url, **binding}, Value.of_headers(values))


@dataclass
class Rows:
    """The rows as a test sets them: a :class:`~vault.gate.doorkeeper.Doorkeeper`."""

    passes: dict[str, Pass | Stale] = field(default_factory=lambda: {TOKEN: PASS})
    secrets: list[Opened] = field(default_factory=lambda: [bearer()])
    vias: set[str] = field(default_factory=set)
    recorded: list[Refused] = field(default_factory=list)
    uses: list[tuple[Pass, str]] = field(default_factory=list)
    unreadable: bool = False
    away: bool = False
    moved: dict[Pass, Pass | None] = field(default_factory=dict)
    admitting: list[threading.Event] = field(default_factory=list)
    """When set: the first is set once a token is looked at, and the look ends when the second is."""

    async def admit(self, token: str) -> Pass | Stale:
        if self.away:
            raise Unavailable
        found = self.passes.get(token, Stale())
        if self.admitting:
            begun, may_end = self.admitting
            begun.set()
            while not may_end.is_set():
                await asyncio.sleep(0.005)
        return found

    async def open(self, admitted: Pass, host: str) -> Sequence[Opened]:
        self.uses.append((admitted, host))
        if self.unreadable:
            raise CannotOpen
        return list(self.secrets)

    async def via_allowed(self, admitted: Pass, via: str) -> bool:
        return via in self.vias

    async def record(self, refused: Sequence[Refused]) -> None:
        self.recorded += refused

    async def compare(self, passes: Collection[Pass]) -> Mapping[Pass, Pass]:
        if self.away:
            raise Unavailable
        now = {one: self.moved.get(one, one) for one in passes}
        return {one: found for one, found in now.items() if found is not None}

    def refusals(self) -> list[tuple[str, int | None, str | None, int]]:
        """What was recorded, in short."""
        return [(one.host, one.port, one.reason, one.count) for one in self.recorded]


@dataclass
class Internet:
    """Names, and the servers of this machine that stand behind addresses."""

    names: dict[str, list[list[str]]] = field(default_factory=lambda: {HOST: [[PUBLIC]]})
    """The answers for a name in turn; the last one stays."""
    servers: dict[tuple[str, int], int] = field(default_factory=dict)
    dialled: list[tuple[str, int]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def resolve(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise OSError
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def connect(self, make: Any, address: str, port: int) -> Wire:
        self.dialled.append((address, port))
        if (address, port) not in self.servers:
            raise ConnectionRefusedError
        return await connect_to(make, "127.0.0.1", self.servers[address, port])


class Answered(Exception):
    """The proxy did not establish a tunnel."""


@dataclass
class Answer:
    """A response that was read to its end."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """A header's value."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class World:
    """The gate under test and everything around it."""

    def __init__(self, limits: Limits | None = None, certificates: Certificates | None = None) -> None:
        self.rows, self.internet, self.certificates = Rows(), Internet(), certificates or Certificates()
        self.now = 1000.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        key, self.authority = new_authority(utc_now())
        network = Network(self.internet.resolve, is_public, self.internet.connect, self.certificates.trust())
        authority = Authority(key, self.authority, utc_now)
        self.gate = Gate(self.rows, authority, network, clock=lambda: self.now, limits=limits)
        self.port = self.run(self.gate.listen("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the gate's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def call(self, act: Any) -> Any:
        """Call a plain function on the gate's loop."""

        async def work() -> Any:
            return act()

        return self.run(work())

    def close(self) -> None:
        """Stop the gate; nothing may be left on its loop."""
        for one in self._sockets:
            one.close()
        self.run(self.gate.stop())
        left = self.call(lambda: [task for task in asyncio.all_tasks(self._loop) if not task.done()])
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert len(left) <= 1, left

    def change(self, **members: Any) -> None:
        """Change the pass of the one token."""
        self.rows.passes[TOKEN] = replace(self.rows.passes[TOKEN], **members)

    # The sandbox's side.

    def trust(self) -> ssl.SSLContext:
        """What a sandbox trusts: the gate's authority and the internet's."""
        context = self.certificates.trust()
        context.load_verify_locations(cadata=self.authority.decode())
        return context

    def connect(self) -> socket.socket:
        """A connection to the gate."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        self._sockets.append(made)
        return made

    def ask(self, raw: bytes) -> Answer:
        """Send bytes to the proxy and read its answer."""
        made = self.connect()
        made.sendall(raw)
        return read_answer(made)

    def tunnel(self, host: str = HOST, port: int | str = 443, token: str | None = TOKEN) -> socket.socket:
        """An established tunnel; raises :class:`Answered` with the proxy's answer otherwise."""
        made = self.connect()
        made.sendall(connect_head(f"{host}:{port}", token))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = made.recv(1)
            if not byte:
                raise Answered(Answer(0, [], b""))
            head += byte
        if not head.startswith(b"HTTP/1.1 200 "):
            raise Answered(rest_of_answer(made, head))
        return made

    def refused(self, host: str = HOST, port: int | str = 443, token: str | None = TOKEN) -> Answer:
        """The answer to a ``CONNECT`` that is refused."""
        try:
            self.tunnel(host, port, token)
        except Answered as answered:
            return answered.args[0]  # type: ignore[no-any-return]
        raise AssertionError("the tunnel was established")

    def secure(self, host: str = HOST, name: str | None = None) -> ssl.SSLSocket:
        """TLS through a tunnel, verified under ``name``."""
        made = self.trust().wrap_socket(self.tunnel(host), server_hostname=name or host)
        self._sockets.append(made)
        return made

    def get(self, path: str = "/ok", *lines: str, host: str = HOST) -> Answer:
        """A ``GET`` on a new tunnel."""
        with self.secure(host) as made:
            return send(made, "GET", path, *lines, host=host)

    @staticmethod
    def stranger(host: str) -> ssl.SSLContext:
        """A server's side under an authority that nobody trusts."""
        return Certificates().server(host)

    def until(self, check: Any) -> None:
        """Wait for what another thread is about to do."""
        deadline = time.monotonic() + 10
        while not check():
            assert time.monotonic() < deadline, "not in time"
            threading.Event().wait(0.005)

    def look(self) -> None:
        """One look of the gate's watch."""
        self.run(self.gate.look())


def connect_head(authority: str, token: str | None = TOKEN) -> bytes:
    """A ``CONNECT`` as the Engine's forwarder sends it."""
    shown = "" if token is None else f"Proxy-Authorization: Bearer {token}\r\n"
    return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{shown}\r\n".encode()


def send(made: socket.socket, method: str, path: str, *lines: str, host: str = HOST, body: bytes = b"") -> Answer:
    """One request and its answer."""
    text = "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", f"Host: {host}", *lines))
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    made.sendall(f"{text}{length}\r\n".encode() + body)
    return read_answer(made, method)


def read_answer(made: socket.socket, method: str = "GET") -> Answer:
    """Read one response to its end; status 0 when the connection closed without one."""
    response = HTTPResponse(made, method=method)
    try:
        response.begin()
    except (ConnectionError, OSError):
        return Answer(0, [], b"")
    return Answer(response.status, response.getheaders(), response.read())


def rest_of_answer(made: socket.socket, head: bytes) -> Answer:
    """The answer whose head was read."""
    lines = head.decode().split("\r\n")
    named = [line.partition(": ")[::2] for line in lines[1:] if line]
    length = int(dict((name.lower(), value) for name, value in named)["content-length"])
    body = b""
    while len(body) < length:
        body += made.recv(length - len(body))
    return Answer(int(lines[0].split()[1]), [(name, value) for name, value in named], body)


def closed(made: socket.socket) -> bool:
    """Whether the other side has closed; waits for it."""
    try:
        while made.recv(65536):
            continue
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
