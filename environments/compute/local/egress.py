"""The way out of a pod: a listener on the pod's own loopback, served by its supervisor, which leads to the egress gate.

A reader may rely on:
  * the listener is made in the pod's network namespace, the connections to the gate in the host's: nothing inside can
    reach anything but the gate, and the egress token never enters the pod;
  * each connection carries one tunnel or one request: the token is shown with its head, what its client says of proxies
    is removed, and a plain request is the last one of its connection;
  * at most ``MOST`` connections are served at once; a head is at most ``HEAD_MAX`` bytes within ``HEAD_SECONDS``.

Standard library only, and of that only what starts fast: the supervisor loads this file.
"""

from __future__ import annotations

import _socket
import os
from _thread import start_new_thread

from environments.compute.engine import libc
from environments.compute.wayout import PORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
BACKLOG = 128
MOST = 128
HEAD_MAX = 64 << 10
HEAD_SECONDS, CONNECT_SECONDS = 30.0, 5.0
PIECE = 64 << 10
_DROPPED = (b"proxy-authorization:", b"proxy-connection:", b"connection:", b"keep-alive:")
_SILENT = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def listen(pid: int) -> _socket.socket:
    """A listener on port ``PORT`` of the loopback that the process ``pid`` has. Raises ``OSError``."""
    ours, theirs = _socket.socketpair()
    child = os.fork()
    if child == 0:
        _listen_there(pid, _socket.socket(fileno=theirs.detach()))
    theirs.close()
    try:
        _, ancillary, _, _ = ours.recvmsg(1, _socket.CMSG_SPACE(4))
    finally:
        ours.close()
        os.waitpid(child, 0)
    for level, kind, data in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            listener = _socket.socket(fileno=int.from_bytes(data[:4], "little"))
            os.set_inheritable(listener.fileno(), False)
            return listener
    raise OSError("the pod's network could not be entered")


def _listen_there(pid: int, answer: _socket.socket) -> None:
    """In a process of its own, which enters the pod's network for this alone."""
    try:
        user = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        if os.geteuid() != 0:
            libc.call("setns", user, CLONE_NEWUSER)
        libc.call("setns", network, CLONE_NEWNET)
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.bind(("", PORT))  # the pod has no device but its loopback, which may not be up yet
        listener.listen(BACKLOG)
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, listener.fileno().to_bytes(4, "little"))
        answer.sendmsg([b"k"], [rights])
    finally:
        os._exit(0)


class Forwarder:
    """Serves the connections of one pod; ``token`` gives the egress token of now, or ``None`` before the join."""

    def __init__(self, gate: str, token: Callable[[], str | None]) -> None:
        host, _, port = gate.rpartition("://")[2].partition("/")[0].rpartition(":")
        self._gate = (host.strip("[]"), int(port))
        self._family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
        self._token = token
        self._serving = 0

    def take(self, listener: _socket.socket) -> None:
        """Accept one connection and serve it in a thread of its own."""
        handle, _ = listener._accept()  # type: ignore[attr-defined]  # what socket.accept() calls
        client = _socket.socket(fileno=handle)
        if self._serving >= MOST:
            client.close()
            return
        self._serving += 1
        try:
            start_new_thread(self._serve, (client,))
        except RuntimeError:
            self._serving -= 1
            client.close()

    def _serve(self, client: _socket.socket) -> None:
        gate = None
        try:
            client.settimeout(HEAD_SECONDS)
            head, rest = _read_head(client)
            token = self._token()
            if token is None:
                client.sendall(_SILENT)
                return
            gate = _socket.socket(self._family, _socket.SOCK_STREAM)
            gate.settimeout(CONNECT_SECONDS)
            try:
                gate.connect(self._gate)
            except OSError:
                client.sendall(_SILENT)
                return
            for sock in (client, gate):
                sock.settimeout(None)
            gate.sendall(with_token(head, token) + rest)
            start_new_thread(_pass_on, (client, gate))
            _pass_on(gate, client)
        except (OSError, RuntimeError):
            return
        finally:
            _end(client)
            if gate is not None:
                _end(gate)
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


def _shut(sock: _socket.socket) -> None:
    try:
        sock.shutdown(_socket.SHUT_RDWR)
    except OSError:
        return


def _end(sock: _socket.socket) -> None:
    """Let a thread that still waits for this socket go, then close it."""
    _shut(sock)
    sock.close()
