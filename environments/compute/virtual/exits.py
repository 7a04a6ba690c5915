"""The server's side of a way out: what a workspace process asks for, and who may use what.

A reader may rely on:
  * the egress token stays in this process: what is handed to a workspace process holds the certificates alone;
  * each connection that is handed out leads through its call's forwarder, which shows that call's token and no other;
  * at most ``MOST_OF_A_CALL`` connections of a call and ``MOST_OF_ALL`` of the server are open at once;
  * with ``close`` every connection of the call is over, whoever holds its other end.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from environments.compute.engine import wire
from environments.compute.engine.files import Args
from environments.compute.engine.wire import Header, Refused
from environments.compute.forwarding import Forwarder
from environments.compute.virtual import control

MOST_OF_A_CALL, MOST_OF_ALL = 16, 512
TOKEN_MAX, TRUSTED_MAX = 4096, 128 * 1024


class Exit:
    """The way out of one call. ``line`` is readable when its process asks; ``theirs`` is the end for the process."""

    def __init__(self, exits: Exits, forwarder: Forwarder) -> None:
        self._exits = exits
        self._forwarder = forwarder
        self.line, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.setblocking(False)

    @property
    def serving(self) -> int:
        return self._forwarder.serving

    def answer(self) -> bool:
        """Answer one question; ``False`` when no other will come. Never waits for the process."""
        try:
            if not self.line.recv(control.SHORT):
                return False
            self._hand_out()
        except OSError:  # it is gone, or asks and does not listen
            return False
        return True

    def _hand_out(self) -> None:
        if not self._exits.room():
            self.line.send(control.NONE_LEFT)
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            if self._forwarder.start(ours):
                socket.send_fds(self.line, [control.CONNECTION], [theirs.fileno()])
            else:
                self.line.send(control.NONE_LEFT)

    def close(self) -> None:
        """The call is over."""
        self._exits.forget(self)
        self._forwarder.end()
        for end in (self.line, self.theirs):
            with suppress(OSError):
                end.close()


class Exits:
    """The ways out of all calls that run."""

    def __init__(self) -> None:
        self._open: set[Exit] = set()
        self._lock = threading.Lock()

    def of(self, header: Header) -> Exit | None:
        """The way out of a call, ``None`` when it has none; raises ``Refused`` for one that makes no sense."""
        if not header.egress or header.op != "bash":
            return None
        args = Args(header.egress)
        gate, token = args.text("gate"), args.text("token", most=TOKEN_MAX)
        args.text("trusted", most=TRUSTED_MAX)
        try:
            made = Exit(self, Forwarder(gate, lambda: token, most=MOST_OF_A_CALL, halves=False))
        except ValueError:
            raise Refused("bad_request", "egress.gate is no URL with a port.") from None
        with self._lock:
            self._open.add(made)
        return made

    def room(self) -> bool:
        """Whether one more connection may be handed out."""
        with self._lock:
            return sum(one.serving for one in self._open) < MOST_OF_ALL

    def forget(self, one: Exit) -> None:
        """Count it no more."""
        with self._lock:
            self._open.discard(one)


def without_token(header: Header, payload: bytes) -> bytes:
    """The header's bytes as its process gets them: of the way out nothing but what it trusts there."""
    if not header.egress:
        return payload
    frame = wire.encode_header(
        header.op,
        header.args,
        call=header.call,
        epoch=header.epoch,
        workspace=header.workspace,
        limits=header.limits,
        egress={"trusted": header.egress.get("trusted", "")},
    )
    return frame[wire.HEAD :]
