"""The control plane's end of the Engine channel: one call, one connection.

An Engine is not trusted: what it sends is counted and checked before it is kept or passed on, and an answer beyond
its limits ends the call as ``tool.failed``. A channel holds no connection, so many threads may use one at once.

A reader may rely on:
  * :class:`NotAccepted` means that nothing has run; :class:`Interrupted` that something may have, and must not run
    again. A success is only ever what an Engine sent as a complete, valid result;
  * a call whose ``cancel`` is set is told to stop, and ends as ``tool.cancelled`` within ``CANCEL_SECONDS``;
  * the end of ``call``, however it comes, closes the connection, and with it ends what runs for it;
  * memory held for a call is bounded, however much its Engine sends.
Times are seconds, sizes bytes.
"""

from __future__ import annotations

import base64
import codecs
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from environments.compute import answers
from environments.compute.contract import Answer, Interrupted, NotAccepted
from environments.compute.engine import wire
from environments.compute.engine.command import OUTPUT_CAP

Sink = Callable[[bytes], None]
Body = bytes | Iterable[bytes] | None

CANCEL_SECONDS = 5.0
LOOK_SECONDS = 0.1  # how often a waiting call looks at its ``cancel``
STREAM_MAX = 1 << 30  # of each output stream that is passed on while a command runs
RECEIVE = 64 * 1024
BASH_MARGIN_SECONDS = 15.0  # beyond a command's own limit: its Engine's grace, and slow machines
_CONTINUATION = bytes(range(0x80, 0xC0))  # of a UTF-8 character, after its first byte


class _Broken(Exception):
    """The Engine sent what it may not send."""


class _Late(Exception):
    """The call's time is over."""


class EngineChannel:
    """Calls to one Engine at ``unix:<path>`` or ``host:port``."""

    def __init__(self, address: str, *, connect_timeout: float = 5.0) -> None:
        self._address = address
        self._connect_timeout = connect_timeout

    def call(
        self,
        op: str,
        args: Mapping[str, object],
        *,
        call_id: str,
        epoch: int,
        time_limit_s: float,
        workspace: str | None = None,
        limits: Mapping[str, int] | None = None,
        egress: Mapping[str, str] | None = None,
        body: Body = None,
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        on_data: Sink | None = None,
        most_data: int | None = None,
        cancel: threading.Event | None = None,
    ) -> Answer:
        """Make one call and wait for its end.

        ``body`` is sent as it comes. ``on_data`` gets file bytes, at most ``most_data``; without it an Engine may
        send none. Output goes to ``on_stdout`` and ``on_stderr``; without them it is dropped. What these functions
        raise ends the call and is passed on. Raises :class:`NotAccepted` and :class:`Interrupted`.
        """
        header = wire.encode_header(
            op, args, call=call_id, epoch=epoch, workspace=workspace, limits=limits, egress=egress
        )
        streamed = args.get("stream") is True
        most_output = (STREAM_MAX if streamed else OUTPUT_CAP) if op == "bash" else 0
        gates = {
            wire.OUT: _Gate(on_stdout, most_output),
            wire.ERR: _Gate(on_stderr, most_output),
            wire.DATA: _Gate(on_data, 0 if on_data is None else most_data),
        }
        with self.connect() as sock:
            exchange = _Exchange(sock, gates, time.monotonic() + time_limit_s, cancel)
            return exchange.run(op, header, body)

    def connect(self) -> socket.socket:
        """A new connection, for a call; raises :class:`NotAccepted`."""
        kind, _, rest = self._address.partition(":")
        try:
            if kind != "unix":
                host, _, port = self._address.rpartition(":")
                return socket.create_connection((host.strip("[]"), int(port)), timeout=self._connect_timeout)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(self._connect_timeout)
            try:
                sock.connect(rest)
            except BaseException:
                sock.close()
                raise
        except (OSError, ValueError) as error:
            raise NotAccepted(f"The Engine cannot be reached: {error}.") from error
        return sock


class _Gate:
    """Counts what comes on one stream and passes it on while it is within its limit (``None``: no limit)."""

    def __init__(self, sink: Sink | None, most: int | None) -> None:
        self._sink = sink
        self._room = most

    def take(self, data: bytes) -> None:
        if self._room is not None:
            self._room -= len(data)
            if self._room < 0:
                raise _Broken("The Engine sent more than it may.")
        if self._sink is not None:
            self._sink(data)


class _Exchange:
    """One call on its connection."""

    def __init__(
        self, sock: socket.socket, gates: Mapping[bytes, _Gate], deadline: float, cancel: threading.Event | None
    ) -> None:
        self._sock = sock
        self._gates = gates
        self._deadline = deadline
        self._cancel = cancel
        self._cancelled = False
        self._accepted = False
        self._decoder = wire.Decoder()

    def run(self, op: str, header: bytes, body: Body) -> Answer:
        try:
            self._send(header, body)
            for kind, payload in self._frames():
                if (answer := self._take(op, kind, payload)) is not None:
                    return answer
        except (_Broken, wire.ProtocolError) as error:
            return self._unusable(str(error))
        except _Late:
            self._close_the_way_in()
            return self._without_answer("The Engine did not answer in time.")
        return self._without_answer("The Engine ended the connection.")

    # --------------------------------------------------------------------------------------------------------- sending

    def _send(self, header: bytes, body: Body) -> None:
        """Send header and body. An Engine that stops listening has answered, or is gone: its frames will tell."""
        if body is None or isinstance(body, bytes):
            self._sendall(header + _framed(body or b"") + wire.encode(wire.END))
            return
        listens = self._sendall(header)
        for part in body:
            listens = listens and self._sendall(_framed(part))
            if not listens:
                return
        self._sendall(wire.encode(wire.END))

    def _sendall(self, data: bytes) -> bool:
        """Send; ``False`` when the Engine stopped listening."""
        try:
            self._sock.settimeout(self._remaining())
            self._sock.sendall(data)
        except TimeoutError:
            raise _Late from None
        except OSError:
            return False
        return True

    def _remaining(self) -> float:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise _Late
        return remaining

    # ------------------------------------------------------------------------------------------------------- receiving

    def _frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Frames as they come, until the Engine ends the connection.

        Until the Engine has accepted only one head is read at a time: what is wrong behind an ``A`` must not hide it.
        """
        while data := self._receive():
            yield from self._decoder.feed(data)

    def _receive(self) -> bytes:
        while True:
            self._look_at_cancel()
            looking = self._cancel is not None and not self._cancelled
            remaining = self._remaining()
            self._sock.settimeout(min(remaining, LOOK_SECONDS) if looking else remaining)
            try:
                return self._sock.recv(RECEIVE if self._accepted else wire.HEAD)
            except TimeoutError:
                continue
            except OSError:
                return b""

    def _look_at_cancel(self) -> None:
        if self._cancel is None or self._cancelled or not self._cancel.is_set():
            return
        self._cancelled = True
        self._deadline = min(self._deadline, time.monotonic() + CANCEL_SECONDS)
        with suppress(OSError):
            self._sock.sendall(wire.encode(wire.KILL))

    def _take(self, op: str, kind: bytes, payload: bytes) -> Answer | None:
        """Take one frame; an answer when it is the last."""
        if not self._accepted:
            self._take_first(kind, payload)
        elif kind == wire.RESULT:
            return _checked(op, payload)
        elif kind in self._gates:
            self._gates[kind].take(payload)
        else:
            raise _Broken("The Engine sent a frame out of its turn.")
        return None

    def _take_first(self, kind: bytes, payload: bytes) -> None:
        if kind == wire.REFUSED:
            raise NotAccepted(f"The Engine refused the call: {answers.refusal(payload)}.")
        if kind != wire.ACCEPTED:
            raise NotAccepted("The Engine neither accepted nor refused the call.")
        self._accepted = True

    # ---------------------------------------------------------------------------------------------------------- endings

    def _unusable(self, message: str) -> Answer:
        if not self._accepted:
            raise NotAccepted(message)
        return Answer("failed", code="tool.failed", message=f"The Engine's answer cannot be used: {message}")

    def _without_answer(self, message: str) -> Answer:
        """The connection ends here, and what runs for it with it."""
        if not self._accepted:
            raise NotAccepted(message)
        if self._cancelled:
            return Answer("failed", code="tool.cancelled", message="The call was cancelled.")
        raise Interrupted(message)

    def _close_the_way_in(self) -> None:
        """Settle whether an Engine that was slow has accepted: from here on it cannot, and sees that it cannot.

        Over TCP it may not see it in time, so there the call counts as accepted.
        """
        if self._accepted:
            return
        self._accepted = self._sock.family != socket.AF_UNIX
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
            self._accepted = self._accepted or self._sock.recv(1) == wire.ACCEPTED


def _checked(op: str, payload: bytes) -> Answer:
    try:
        return answers.checked(op, payload)
    except ValueError as error:
        raise _Broken(str(error)) from error


def _framed(data: bytes) -> bytes:
    return b"".join(wire.chunks(wire.DATA, data))


# ---------------------------------------------------------------------------------------------------------------- tools


class _Text:
    """One output stream as the API shows it: its last ``OUTPUT_CAP`` bytes, and the text passed on while it comes."""

    def __init__(self, on_text: Callable[[str], None] | None) -> None:
        self._on_text = on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = bytearray()
        self.received = 0

    def take(self, data: bytes) -> None:
        self.received += len(data)
        self._kept += data
        if len(self._kept) > 2 * OUTPUT_CAP:
            del self._kept[:-OUTPUT_CAP]
        self._pass_on(self._decoder.decode(data))

    def add_line(self, line: str) -> None:
        """Add a line of our own at the end."""
        start = "" if not self._kept or self._kept.endswith(b"\n") else "\n"
        self.take(f"{start}{line}\n".encode())

    def close(self) -> str:
        """The text that is kept; a character cut at its start is left out."""
        self._pass_on(self._decoder.decode(b"", final=True))
        kept = bytes(self._kept[-OUTPUT_CAP:])
        if self.received > len(kept):
            kept = kept.lstrip(_CONTINUATION)
        return kept.decode("utf-8", "replace")

    def _pass_on(self, text: str) -> None:
        if text and self._on_text is not None:
            self._on_text(text)


def run_bash(
    channel: EngineChannel,
    command: str,
    *,
    call_id: str,
    epoch: int,
    cwd: str = "/workspace",
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout_ms: int = 120_000,
    workspace: str | None = None,
    limits: Mapping[str, int] | None = None,
    egress: Mapping[str, str] | None = None,
    on_stdout: Callable[[str], None] | None = None,
    on_stderr: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Answer:
    """Run a command and give the output of the ``bash`` tool; with ``on_…`` its text is passed on while it runs.

    The texts passed on are together what the output would hold without its cap. ``egress`` is the way out of a virtual
    workspace: ``gate``, ``token`` and ``trusted``. Raises as ``EngineChannel.call``.
    """
    out, err = _Text(on_stdout), _Text(on_stderr)
    streamed = on_stdout is not None or on_stderr is not None
    args = {"command": command, "cwd": cwd, "env": dict(env or {}), "timeoutMs": timeout_ms, "stream": streamed}
    answer = channel.call(
        "bash",
        args,
        call_id=call_id,
        epoch=epoch,
        time_limit_s=timeout_ms / 1000 + BASH_MARGIN_SECONDS,
        workspace=workspace,
        limits=limits,
        egress=egress,
        body=stdin,
        on_stdout=out.take,
        on_stderr=err.take,
        cancel=cancel,
    )
    if answer.output is None:
        return answer
    produced = answer.output
    kept_back = produced["stdoutBytes"] != out.received or produced["stderrBytes"] != err.received
    if produced["timedOut"]:
        err.add_line(f"nylorun: timed out after {timeout_ms} ms")
    output = {
        "exitCode": 124 if produced["timedOut"] else produced["exitCode"],
        "stdout": out.close(),
        "stderr": err.close(),
        "truncated": kept_back or max(out.received, err.received) > OUTPUT_CAP,
        "timedOut": produced["timedOut"],
        "durationMs": produced["durationMs"],
    }
    return Answer("completed", output=output)


def read_file(
    channel: EngineChannel,
    path: str,
    *,
    call_id: str,
    epoch: int,
    offset: int,
    limit: int,
    time_limit_s: float,
    workspace: str | None = None,
    limits: Mapping[str, int] | None = None,
    cancel: threading.Event | None = None,
) -> Answer:
    """Read a slice and give the output of the ``read`` tool. Raises as ``EngineChannel.call``."""
    content = bytearray()
    answer = channel.call(
        "read",
        {"path": path, "offset": offset, "limit": limit},
        call_id=call_id,
        epoch=epoch,
        time_limit_s=time_limit_s,
        workspace=workspace,
        limits=limits,
        on_data=content.extend,
        most_data=limit,
        cancel=cancel,
    )
    if answer.output is None:
        return answer
    if answer.output["length"] != len(content):
        return Answer("failed", code="tool.failed", message="The Engine sent another number of bytes than it said.")
    try:
        encoding, text = "utf-8", content.decode("utf-8")
    except UnicodeDecodeError:
        encoding, text = "base64", base64.b64encode(content).decode("ascii")
    kept = {name: answer.output[name] for name in ("path", "size", "offset", "length", "eof")}
    return Answer("completed", output={**kept, "encoding": encoding, "content": text})
