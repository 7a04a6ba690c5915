"""The process's side of a way out: connections that lead to the egress gate, and what is trusted beyond it.

No socket can be made here: the server hands connections out, one for each question, and shows the gate the token of the
call on each of them. Names are looked up by the gate.

A reader may rely on:
  * ``load`` reads this host's certificates once, before the cage; nothing is loaded or read from the host after it;
  * ``close``, by any thread, ends every connection and whoever waits for one; it is there for one call;
  * a TLS connection is verified for its host against this host's certificates and those of the call.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress

from environments.compute import trust
from environments.compute.virtual import control


class Unreachable(Exception):
    """There is no connection to be had."""


class _Trust:
    """What TLS is verified against: made once in the process that all others are forked from."""

    context: ssl.SSLContext | None = None
    added: set[str] = set()


def load() -> None:
    """Read what this host trusts; a bundle that cannot be read is not trusted, and stops nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    with suppress(ssl.SSLError):  # also when there is none
        context.load_verify_locations(cadata=trust.certificates().decode("ascii", "ignore"))
    _Trust.context = context


def verifying(trusted: str) -> ssl.SSLContext:
    """Checks host names, with ``trusted`` (PEM) beside what this host trusts. Raises ``ssl.SSLError``."""
    context = _Trust.context
    assert context is not None  # noqa: S101 - loaded before the first call
    if trusted and trusted not in _Trust.added:
        context.load_verify_locations(cadata=trusted)
        _Trust.added.add(trusted)
    return context


class Outside:
    """The way out of one call."""

    def __init__(self, line: socket.socket, trusted: str) -> None:
        self._line = line
        self._trusted = trusted
        self._guards: list[socket.socket] = []
        self._closed = False
        self._lock = threading.Lock()

    def connect(self) -> socket.socket:
        """A connection to the gate, on which one tunnel or one request can be asked for; raises ``Unreachable``."""
        try:
            self._line.send(control.CONNECTION)
            _, handles, _, _ = socket.recv_fds(self._line, control.SHORT, 1)
        except OSError as error:
            raise Unreachable("the call is over") from error
        if not handles:
            raise Unreachable("too many connections are open")
        made = socket.socket(fileno=handles[0])
        with self._lock:
            if self._closed:
                made.close()
                raise Unreachable("the call is over")
            self._guards.append(made.dup())
        return made

    def release(self) -> None:
        """No connection is needed any more: end those that are left."""
        with self._lock:
            for guard in self._guards:
                _shut(guard)
                guard.close()
            self._guards.clear()

    def secure(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        """TLS over ``plain``, verified for ``host``; raises ``ssl.SSLError`` and ``OSError``."""
        # As bytes: a text would be encoded by a module that is not loaded here.
        return verifying(self._trusted).wrap_socket(plain, server_hostname=host.encode("ascii"))

    def close(self) -> None:
        """End everything; who waits for a connection, or on one, goes on at once."""
        with self._lock:
            self._closed = True
            for end in (self._line, *self._guards):
                _shut(end)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
