"""The second thread of a workspace process: ends the command that the first one is inside of.

The first thread runs the interpreter and cannot look up. This one looks at the clock, the client, the server and the
disk limit, and asks the interpreter to stop. A built-in program that does not hear (it waits, or computes) is left
behind: this thread then sends the answer itself and ends the process.

A reader may rely on:
  * a command is answered exactly once, by the first thread or by this one;
  * the time limit holds to about ``STOP_SECONDS`` whatever runs; when the server is gone this process is gone at once;
  * between two commands this thread touches neither socket.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from environments.compute.engine import wire
from environments.compute.engine.wire import Cancelled, ClientGone, ToolError
from environments.compute.virtual import control
from environments.compute.virtual.meter import Meter
from environments.compute.virtual.shell import Command

STOP_SECONDS = 0.2


class Watch:
    """Looks after one command at a time."""

    def __init__(self, line: socket.socket, meter: Meter) -> None:
        self._line = line
        self._meter = meter
        self._lock = threading.Lock()
        self._command: Command | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def begin(self, command: Command) -> None:
        """From now on ``command`` may be ended."""
        with self._lock:
            self._command = command
        os.eventfd_write(self._wake, 1)

    def end(self) -> None:
        """The first thread is out of the interpreter and will answer; it waits here for ever when it came too late."""
        with self._lock:
            self._command = None

    def _run(self) -> None:
        while True:
            command = self._command
            if command is None:
                os.eventfd_read(self._wake)
            elif command.reason is None and not command.timed_out:
                self._look(command)
            else:
                self._leave_behind(command)

    def _look(self, command: Command) -> None:
        poll = select.poll()
        for handle in (self._wake, self._line.fileno(), command.client.fileno()):
            if handle >= 0:
                poll.register(handle, select.POLLIN)
        seconds = min(self._meter.pause(), max(0.0, command.deadline - time.monotonic()))
        ready = dict(poll.poll(seconds * 1000))
        if self._wake in ready:
            os.eventfd_read(self._wake)
        with self._lock:
            if self._command is command:
                self._judge(command, ready)

    def _judge(self, command: Command, ready: dict[int, int]) -> None:
        """Decide whether the command goes on; the lock is held, so it is still running."""
        if self._line.fileno() in ready:
            self._hear_server(command)
        if command.client.fileno() in ready and command.reason is None:
            command.reason = _heard_from(command.client)
        if command.reason is None and self._meter.poll():
            command.reason = ToolError("tool.no_space", "The command filled the workspace beyond its limit.")
        command.timed_out = command.reason is None and time.monotonic() >= command.deadline
        if command.timed_out or command.reason is not None:
            command.stop()

    def _hear_server(self, command: Command) -> None:
        try:
            message = self._line.recv(control.SHORT, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            os._exit(0)
        if message[1:].decode("utf-8", "replace") == command.call:
            command.reason = Cancelled()

    def _leave_behind(self, command: Command) -> None:
        """Give the first thread a moment to come out; then answer in its place and end."""
        until = time.monotonic() + STOP_SECONDS
        while self._command is command and time.monotonic() < until:
            select.select([], [], [], 0.005)
        with self._lock:
            if self._command is not command:
                return
            if not command.sending:
                _send_off(command)
                self._line.send(control.ENDED)
            os._exit(0)


def _heard_from(client: socket.socket) -> Exception | None:
    """After its body a client sends ``K`` and nothing else; anything more, or its leaving, ends the call."""
    try:
        data = client.recv(wire.HEAD, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return ClientGone()
    return Cancelled() if data == wire.encode(wire.KILL) else ClientGone()


def _send_off(command: Command) -> None:
    frames = command.last_frames(None) if command.timed_out else ending(command.reason)
    try:
        command.client.sendall(frames)
    except OSError:
        return


def ending(reason: Exception | None) -> bytes:
    """The last frame of a command that was ended; none for a client that left."""
    if isinstance(reason, ToolError):
        return wire.encode_json(wire.RESULT, wire.failed(reason.code, reason.message))
    if isinstance(reason, Cancelled):
        return wire.encode_json(wire.RESULT, wire.failed("tool.cancelled", "The call was cancelled."))
    return b""
