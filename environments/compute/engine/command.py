"""One ``bash`` call: a login shell in its own session, its streams, its time limit, its end.

A reader may rely on:
  * a call ends when the shell ends: output still in the pipes is taken, and background children that hold the pipes
    open delay the answer by at most ``QUIET`` after the last output and ``LINGER`` in all. Such children stay alive, as
    after an interactive shell; they should write elsewhere, since nobody reads their pipe any more;
  * a time-out, a kill and a lost connection send TERM to the whole process group, and KILL ``GRACE`` (lost connection:
    ``GRACE_GONE``) seconds later to whoever is left of its session; the call ends when the group is gone or killed;
  * without ``stream`` only the last ``OUTPUT_CAP`` bytes of each stream are kept; with it, a client that does not read
    holds the command back instead of filling memory;
  * all bytes are passed as they are. ``stdoutBytes`` and ``stderrBytes`` count everything that was read.
"""

from __future__ import annotations

import os
import select
import time

from environments.compute.engine import wire
from environments.compute.engine.children import SIGTERM, Child
from environments.compute.engine.files import Args

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

OUTPUT_CAP = 1 << 20
PIECE = 64 * 1024
BACKLOG = 256 * 1024
GRACE, GRACE_GONE = 2.0, 0.5
QUIET, LINGER = 0.2, 1.0
GROUP_POLL = 0.02
TIMEOUT_MAX_MS = 3_600_000
COMMAND_MAX = 65_536
ARGUMENT_MAX = 120_000  # the kernel takes no argument over 128 KiB


class Request:
    """The checked arguments of a ``bash`` call."""

    def __init__(self, raw: dict[str, Any]) -> None:
        args = Args(raw)
        self.command = args.text("command", most=COMMAND_MAX)
        self.folder = args.text("cwd", "/workspace")
        self.env = args.texts("env")
        self.timeout = args.number("timeoutMs", 1, TIMEOUT_MAX_MS) / 1000
        self.stream = args.flag("stream")
        if "\0" in self.command:
            raise wire.Refused("bad_request", "command must have no NUL.")


def shell(command: str) -> tuple[list[str], int | None]:
    """The argv for ``command``, and what its handle 3 must be when it is too long to be an argument."""
    encoded = command.encode("utf-8", "surrogateescape")
    if len(encoded) <= ARGUMENT_MAX:
        return ["/bin/bash", "-lc", command], None
    script = os.memfd_create("command")
    os.write(script, encoded)
    return ["/bin/bash", "-lc", ". /proc/self/fd/3"], script


class Output:
    """What came out of one stream: a count, and either the last bytes or frames on their way to the client."""

    def __init__(self, pipe: int, kind: bytes, *, stream: bool) -> None:
        os.set_blocking(pipe, False)
        self.pipe: int | None = pipe
        self.total = 0
        self._kind = kind
        self._stream = stream
        self._tail = bytearray()

    def take(self) -> bytes:
        """Read what is there; gives the frame to send now, empty when nothing is."""
        if self.pipe is None:
            return b""
        try:
            data = os.read(self.pipe, PIECE)
        except BlockingIOError:
            return b""
        if not data:
            self.close()
            return b""
        self.total += len(data)
        if self._stream:
            return wire.encode(self._kind, data)
        self._tail += data
        if len(self._tail) > 2 * OUTPUT_CAP:
            del self._tail[:-OUTPUT_CAP]
        return b""

    def frames(self) -> bytes:
        """The kept bytes as frames."""
        return b"".join(wire.chunks(self._kind, bytes(self._tail[-OUTPUT_CAP:])))

    def close(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None


class Input:
    """The bytes for standard input, from the client to the pipe."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self.pipe: int | None = pipe
        self._waiting = bytearray()
        self._complete = False

    @property
    def wants(self) -> bool:
        return self.pipe is not None and bool(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) > 2 * wire.MAX_PAYLOAD

    def add(self, data: bytes) -> None:
        if self.pipe is not None:
            self._waiting += data

    def finish(self) -> None:
        self._complete = True
        if not self._waiting:
            self.close()

    def push(self) -> None:
        """Write what fits; a command that closed its input takes no more."""
        if self.pipe is None:
            return
        try:
            del self._waiting[: os.write(self.pipe, self._waiting[:PIECE])]
        except BlockingIOError:
            return
        except OSError:
            self._waiting.clear()
            self.close()
            return
        if self._complete and not self._waiting:
            self.close()

    def close(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None


class Call:
    """One running command and its connection. ``run`` gives the ``R`` value; ``None`` when the client is gone."""

    def __init__(self, sock: socket, child: Child, request: Request, pipes: tuple[int, int, int], cancel: int) -> None:
        self._sock = sock
        self._child = child
        self._cancel = cancel
        self._stream = request.stream
        self._input = Input(pipes[0])
        self._out = Output(pipes[1], wire.OUT, stream=request.stream)
        self._err = Output(pipes[2], wire.ERR, stream=request.stream)
        self._decoder = wire.Decoder()
        self._to_client = bytearray()
        self._started = time.monotonic()
        self._deadline: float | None = self._started + request.timeout
        self._kill_at: float | None = None
        self._exit_code: int | None = None
        self._quiet_since = self._exited_at = 0.0
        self._timed_out = self._cancelled = self._gone = False

    def run(self) -> dict[str, Any] | None:
        """Serve the call until it is over."""
        self._sock.setblocking(False)
        try:
            while not self._over():
                self._turn()
            if not self._gone:
                return self._finish()
        except wire.ProtocolError:
            self._gone = True
            self._child.kill_session()
        finally:
            for end in (self._input, self._out, self._err):
                end.close()
            self._child.close()
        return None

    # ------------------------------------------------------------------------------------------------ one turn

    def _turn(self) -> None:
        poll = select.poll()
        for handle, events in self._interests().items():
            poll.register(handle, events)
        ready = dict(poll.poll(max(0.0, self._wait()) * 1000))
        if self._sock.fileno() in ready:
            self._talk(ready[self._sock.fileno()])
        if self._cancel in ready:
            self._cancelled = True
            self._end_group(GRACE)
        if self._input.pipe in ready:
            self._input.push()
        self._collect(ready)
        if self._exit_code is None and self._child.handle in ready:
            self._exit_code = self._child.exit_code()
            self._exited_at = self._quiet_since = time.monotonic()
        self._check_time()

    def _interests(self) -> dict[int, int]:
        wanted = {}
        if not self._gone:
            talk = 0 if self._input.full else select.POLLIN
            wanted[self._sock.fileno()] = talk | select.POLLRDHUP | (select.POLLOUT if self._to_client else 0)
        if not self._cancelled:
            wanted[self._cancel] = select.POLLIN
        if self._input.wants and self._input.pipe is not None:
            wanted[self._input.pipe] = select.POLLOUT
        if len(self._to_client) < BACKLOG:
            wanted.update({end.pipe: select.POLLIN for end in (self._out, self._err) if end.pipe is not None})
        if self._exit_code is None:
            wanted[self._child.handle] = select.POLLIN
        return wanted

    def _wait(self) -> float:
        """Seconds until something must be looked at again, at most one minute."""
        now = time.monotonic()
        times = [now + 60]
        if self._deadline is not None:
            times.append(self._deadline)
        if self._kill_at is not None:
            times.append(min(self._kill_at, now + GROUP_POLL))
        if self._exit_code is not None:
            times.append(min(self._quiet_since + QUIET, self._exited_at + LINGER))
        return min(times) - now

    def _talk(self, events: int) -> None:
        if events & select.POLLOUT:
            self._send_some()
        if events & select.POLLIN:
            self._hear()
        elif events & (select.POLLHUP | select.POLLERR | select.POLLRDHUP):
            self._lose_client()

    def _send_some(self) -> None:
        try:
            del self._to_client[: self._sock.send(self._to_client[:BACKLOG])]
        except BlockingIOError:
            return
        except OSError:
            self._lose_client()

    def _hear(self) -> None:
        try:
            data = self._sock.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose_client()
            return
        for kind, payload in self._decoder.feed(data):
            self._obey(kind, payload)

    def _obey(self, kind: bytes, payload: bytes) -> None:
        if kind == wire.DATA:
            self._input.add(payload)
        elif kind == wire.END:
            self._input.finish()
        elif kind == wire.KILL:
            self._cancelled = True
            self._end_group(GRACE)
        else:
            raise wire.ProtocolError("expected body bytes")

    def _collect(self, ready: dict[int, int]) -> None:
        for end in (self._out, self._err):
            if end.pipe in ready:
                before = end.total
                frame = end.take()
                if not self._gone:
                    self._to_client += frame
                if end.total != before:
                    self._quiet_since = time.monotonic()

    # ------------------------------------------------------------------------------------------------ the end

    def _lose_client(self) -> None:
        self._gone = True
        self._to_client.clear()
        self._end_group(GRACE_GONE)

    def _end_group(self, grace: float) -> None:
        """TERM now and KILL later; an end that is under way already is only ever brought forward."""
        self._deadline = None
        kill_at = time.monotonic() + grace
        if self._kill_at is None:
            self._child.signal_group(SIGTERM)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _check_time(self) -> None:
        now = time.monotonic()
        if self._deadline is not None and self._exit_code is None and now >= self._deadline:
            self._timed_out = True
            self._end_group(GRACE)
        if self._kill_at is not None and (now >= self._kill_at or not self._child.signal_group(0)):
            self._child.kill_session()
            self._kill_at = now + GROUP_POLL

    def _over(self) -> bool:
        if self._exit_code is None:
            return False
        if self._kill_at is not None and self._child.signal_group(0):
            return False
        if self._out.pipe is None and self._err.pipe is None:
            return True
        now = time.monotonic()
        return now >= self._quiet_since + QUIET or now >= self._exited_at + LINGER

    def _finish(self) -> dict[str, Any] | None:
        self._sock.setblocking(True)
        try:
            self._sock.sendall(self._to_client)
            if not self._stream:
                self._sock.sendall(self._out.frames() + self._err.frames())
        except OSError:
            return None
        if self._cancelled:
            return wire.failed("tool.cancelled", "The command was ended on request.")
        return wire.completed(
            {
                "exitCode": 124 if self._timed_out else self._exit_code,
                "timedOut": self._timed_out,
                "durationMs": int((time.monotonic() - self._started) * 1000),
                "stdoutBytes": self._out.total,
                "stderrBytes": self._err.total,
            }
        )
