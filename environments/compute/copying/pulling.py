"""Calls to an Engine whose data is pulled: the caller reads when it wants to, and the Engine waits meanwhile.

The other form of ``channel``, for answers and bodies too large to be held. The Engine is trusted as little: frames are
bounded and checked, and a success is only ever a complete, valid result.

A reader may rely on:
  * :class:`NotAccepted` means that nothing has run, :class:`Interrupted` that the connection ended, or that the Engine
    said nothing for ``quiet_s`` seconds; :class:`CopyFailed` that it failed, or sent what it may not send;
  * a call whose ``cancel`` is set ends within ``LOOK_SECONDS`` as ``tool.cancelled``: its connection is closed;
  * memory: a few pieces of ``PIECE`` bytes.
A call is used by one thread.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator, Mapping

from environments.compute import answers
from environments.compute.channel import LOOK_SECONDS, EngineChannel
from environments.compute.contract import Interrupted, NotAccepted
from environments.compute.engine import wire
from environments.compute.engine.records import PIECE


class _Silent(Interrupted):
    """Nothing came for too long."""


class CopyFailed(Exception):
    """A call of a disk copy failed: ``code`` is one of the ``tool.*`` words, ``message`` one sentence for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def unusable(message: str) -> CopyFailed:
    """What the Engine sent is not what it may send."""
    return CopyFailed("tool.failed", f"The Engine's answer cannot be used: {message}")


class PulledCall:
    """One call on its own connection, which closes with it. Entered once it is accepted."""

    def __init__(
        self, channel: EngineChannel, op: str, header: bytes, *, quiet_s: float, cancel: threading.Event | None
    ) -> None:
        self.quiet_s = quiet_s
        self._op = op
        self._cancel = cancel
        self._output: Mapping[str, object] | None = None
        self._sock = channel.connect()
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        try:
            self._sock.setblocking(False)
            wire.send_ahead(self._sock)
            self.send(header)
            self._await_acceptance()
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> PulledCall:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def _await_acceptance(self) -> None:
        try:
            kind, length = wire.check_head(self._exactly(wire.HEAD))
            payload = self._exactly(length)
        except wire.ProtocolError as error:
            raise NotAccepted(str(error)) from error
        except _Silent:  # it may have accepted; what runs ends with this connection
            raise
        except Interrupted as error:
            raise NotAccepted("The Engine ended the connection before it accepted the call.") from error
        if kind == wire.REFUSED:
            raise NotAccepted(f"The Engine refused the call: {answers.refusal(payload)}.")
        if kind != wire.ACCEPTED or length:
            raise NotAccepted("The Engine neither accepted nor refused the call.")

    # --------------------------------------------------------------------------------------------------------- sending

    def send(self, *parts: bytes | memoryview) -> bool:
        """Send all parts; ``False`` when the Engine wants no more of them: its frames will tell why."""
        for part in parts:
            rest = memoryview(part)
            while rest:
                if not self._may_send():
                    return False
                try:
                    rest = rest[self._sock.send(rest) :]
                except BlockingIOError:
                    continue
                except OSError:
                    return False
        return True

    def send_data(self, data: bytes) -> bool:
        """Send a part of the body, of at most one frame."""
        return self.send(wire.head(wire.DATA, len(data)), data)

    def end_body(self) -> bool:
        """Nothing more is sent."""
        return self.send(wire.encode(wire.END))

    def _may_send(self) -> bool:
        """Wait until the Engine takes more; ``False`` when it speaks instead."""
        return not self._wait(select.POLLIN | select.POLLOUT) & select.POLLIN

    # ------------------------------------------------------------------------------------------------------- receiving

    def pieces(self) -> Iterator[bytes]:
        """Data as it comes, up to the result, which ``output`` then is."""
        while self._output is None:
            kind, length = self._head()
            if kind == wire.RESULT:
                self._finish(self._exactly(length))
            elif kind != wire.DATA:
                raise unusable("a frame came out of its turn.")
            else:
                while length:
                    piece = self._receive(min(length, PIECE))
                    length -= len(piece)
                    yield piece

    @property
    def output(self) -> Mapping[str, object]:
        """The result; whatever data still comes before it is one of the things it may not send."""
        for _ in self.pieces():
            raise unusable("more came than was told.")
        return self._output or {}

    def _head(self) -> tuple[bytes, int]:
        self._look_at_cancel()
        try:
            return wire.check_head(self._exactly(wire.HEAD))
        except wire.ProtocolError as error:
            raise unusable(str(error)) from error

    def _finish(self, payload: bytes) -> None:
        try:
            answer = answers.checked(self._op, payload)
        except ValueError as error:
            raise unusable(str(error)) from error
        if answer.output is None:
            raise CopyFailed(answer.code or "tool.failed", answer.message or "")
        self._output = answer.output

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            parts.append(self._receive(min(size, PIECE)))
            size -= len(parts[-1])
        return b"".join(parts)

    def _receive(self, most: int) -> bytes:
        while True:
            try:
                data = self._sock.recv(most)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            except OSError as error:
                raise Interrupted("The connection to the Engine broke.") from error
            if not data:
                raise Interrupted("The Engine ended the connection.")
            return data

    def _wait(self, events: int) -> int:
        """Wait until one of the events happens; gives those that did."""
        self._poll.modify(self._sock, events)
        deadline = time.monotonic() + self.quiet_s
        while True:
            self._look_at_cancel()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise _Silent("The Engine did not answer in time.")
            ready = self._poll.poll(1000 * (remaining if self._cancel is None else min(remaining, LOOK_SECONDS)))
            if ready:
                happened = ready[0][1]
                return happened | (select.POLLIN if happened & (select.POLLHUP | select.POLLERR) else 0)

    def _look_at_cancel(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise CopyFailed("tool.cancelled", "The copy was cancelled.")
