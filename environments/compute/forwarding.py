"""The step from a sandbox to the egress gate: passes a connection on and shows the gate the token with its head.

A reader may rely on:
  * each connection carries one tunnel or one request: the token is shown with its head, what its client says of proxies
    is removed, and a plain request is the last one of its connection;
  * at most ``most`` connections are served at once; a head is at most ``HEAD_MAX`` bytes within ``HEAD_SECONDS``;
  * after ``end`` every connection is over, on both sides, and none is begun.

Standard library only, and of that only what starts fast: the supervisor of a local pod loads this file.
"""

from __future__ import annotations

import _socket
import sys
from _thread import allocate_lock, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 128
HEAD_MAX = 64 << 10
HEAD_SECONDS, CONNECT_SECONDS = 30.0, 5.0
PIECE = 64 << 10
_DROPPED = (b"proxy-authorization:", b"proxy-connection:", b"connection:", b"keep-alive:")
_NO_LINGER = (1).to_bytes(4, sys.byteorder) + bytes(4)
_SILENT = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Forwarder:
    """Serves the connections of one sandbox; ``token`` gives the egress token of now, or ``None`` before there is one.

    With ``halves`` a client may end its side alone and go on to read. Without, its end is the end of all, and the gate
    is told by a reset: after a mere end of what we send it would go on to wait for the other side.
    Raises ``ValueError`` for a ``gate`` that is no URL with a port.
    """

    def __init__(self, gate: str, token: Callable[[], str | None], *, most: int = MOST, halves: bool = True) -> None:
        host, _, port = gate.rpartition("://")[2].partition("/")[0].rpartition(":")
        self._gate = (host.strip("[]"), int(port))
        self._family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
        self._token = token
        self._most = most
        self._halves = halves
        self._serving = 0
        self._ended = False
        self._live: set[_socket.socket] = set()
        self._lock = allocate_lock()

    @property
    def serving(self) -> int:
        """How many connections are served now."""
        return self._serving

    def take(self, listener: _socket.socket) -> None:
        """Accept one connection and serve it in a thread of its own."""
        handle, _ = listener._accept()  # type: ignore[attr-defined]  # what socket.accept() calls
        self.start(_socket.socket(fileno=handle))

    def start(self, client: _socket.socket) -> bool:
        """Serve a connection in a thread of its own; ``False``, and it is closed, when it cannot be served."""
        with self._lock:
            room = self._serving < self._most and not self._ended
            self._serving += room
        if not room:
            client.close()
            return False
        try:
            start_new_thread(self._serve, (client,))
        except RuntimeError:
            self._leave(client)
            return False
        return True

    def end(self) -> None:
        """End every connection; none is begun any more."""
        with self._lock:
            self._ended = True
            for sock in self._live:
                _shut(sock) if sock.family == _socket.AF_UNIX else _cut(sock)

    def _serve(self, client: _socket.socket) -> None:
        try:
            self._keep(client)
            self._forward(client)
        except (OSError, RuntimeError):
            return
        finally:
            self._leave(client)

    def _forward(self, client: _socket.socket) -> None:
        client.settimeout(HEAD_SECONDS)
        head, rest = _read_head(client)
        token = self._token()
        gate = None if token is None else self._dial()
        if gate is None or token is None:
            client.sendall(_SILENT)
            return
        try:
            self._keep(gate)
            for sock in (client, gate):
                sock.settimeout(None)
            gate.sendall(with_token(head, token) + rest)
            if self._halves:
                start_new_thread(_pass_on, (client, gate))
                _pass_on(gate, client)
            else:
                start_new_thread(_pour_and_cut, (client, gate))
                _pour(gate, client)
        finally:
            self._drop(client)  # first: a thread may still wait for it
            if not self._halves:
                _cut(gate)
            self._drop(gate)

    def _dial(self) -> _socket.socket | None:
        """A connection to the gate; ``None`` when it does not take one."""
        gate = _socket.socket(self._family, _socket.SOCK_STREAM)
        gate.settimeout(CONNECT_SECONDS)
        try:
            gate.connect(self._gate)
        except OSError:
            gate.close()
            return None
        return gate

    def _keep(self, sock: _socket.socket) -> None:
        """Let ``end`` find this one; raises ``OSError`` when that was already."""
        with self._lock:
            if self._ended:
                raise OSError("ended")
            self._live.add(sock)

    def _drop(self, sock: _socket.socket) -> None:
        with self._lock:
            self._live.discard(sock)
        if self._halves or sock.family == _socket.AF_UNIX:
            _shut(sock)  # let a thread that still waits for it go
        sock.close()

    def _leave(self, client: _socket.socket) -> None:
        self._drop(client)
        with self._lock:
            self._serving -= 1


def with_token(head: bytes, token: str) -> bytes:
    """A request's head, lines with their ends and the empty one last, as the gate gets it."""
    first, *lines = head.split(b"\r\n")[:-2]
    kept = [line for line in lines if not line.lower().startswith(_DROPPED)]
    if not first.upper().startswith(b"CONNECT "):
        kept.append(b"Connection: close")
    shown = b"Proxy-Authorization: Bearer " + token.encode("ascii")
    return b"\r\n".join([first, *kept, shown, b"", b""])


def _read_head(client: _socket.socket) -> tuple[bytes, bytes]:
    """The head of a request, and what came behind it; raises ``OSError`` for one that does not end."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        piece = client.recv(PIECE) if len(data) <= HEAD_MAX else b""
        if not piece:
            raise OSError("no request")
        data += piece
    return data[: end + 4], data[end + 4 :]


def _pass_on(source: _socket.socket, target: _socket.socket) -> None:
    """Pass on what ``source`` sends, and its end."""
    try:
        while data := source.recv(PIECE):
            target.sendall(data)
        target.shutdown(_socket.SHUT_WR)
    except OSError:  # either end is gone: so is the other
        for sock in (source, target):
            _shut(sock)


def _pour(source: _socket.socket, target: _socket.socket) -> None:
    """Pass on what ``source`` sends, until either end is gone."""
    try:
        while data := source.recv(PIECE):
            target.sendall(data)
    except OSError:
        return


def _pour_and_cut(source: _socket.socket, target: _socket.socket) -> None:
    _pour(source, target)
    _cut(target)


def _cut(sock: _socket.socket) -> None:
    """Let whoever waits for this TCP connection go, and have its close be a reset."""
    try:
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, _NO_LINGER)
        sock.shutdown(_socket.SHUT_RD)
    except OSError:
        return


def _shut(sock: _socket.socket) -> None:
    try:
        sock.shutdown(_socket.SHUT_RDWR)
    except OSError:
        return
