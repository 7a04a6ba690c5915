"""One connection to the server: take its header, hand the call to a process of its workspace, watch until it is over.

A reader may rely on:
  * nothing runs before ``A`` was sent, and ``A`` is sent only when a process stands ready;
  * a call whose process will not end when its time is over, its client left or it was cancelled is ended by force; a
    client that still listens is answered all the same (exit code 124, ``tool.cancelled``);
  * the way out of a call is there for that call alone, and its token stays in this process (see ``exits``);
  * a process that ran out of memory or crashed answers as a command ended by that signal; one that was killed from
    outside closes the connection, so the client knows that the call was interrupted.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from environments.compute.engine import wire
from environments.compute.engine.attempts import Attempts
from environments.compute.engine.command import Request
from environments.compute.engine.files import COPY_OPS, FILE_OPS, Args, copy_of, prepare
from environments.compute.engine.wire import Header, ProtocolError, Refused, ToolError
from environments.compute.virtual import control
from environments.compute.virtual.exits import Exit, Exits, without_token
from environments.compute.virtual.folders import Folders, is_uid
from environments.compute.virtual.hatchery import Process
from environments.compute.virtual.pool import Pool
from environments.compute.virtual.stages import Stages, check_name

HEADER_SECONDS = 30.0
STOP_SECONDS = 2.0  # what a process gets to end its call by itself
LONGEST_SECONDS = 3600.0 + 60.0
COPY_SECONDS = 6 * 3600.0  # of a disk: as long as it goes on, its client waits
FAREWELL_SECONDS = 10.0
LOOK_SECONDS = 0.5
MEMORY_DEFAULT_MIB, MEMORY_LEAST_MIB = 512, 64


@dataclass(eq=False, slots=True)
class Call:
    """A call that runs."""

    header: Header
    client: socket.socket
    process: Process
    exit: Exit | None
    deadline: float
    cancelled: bool = False
    timed_out: bool = False
    gone: bool = False
    killed: bool = False
    started: float = field(default_factory=time.monotonic)


class Copier:
    """A call of a disk copy, from before it has a process: another attempt may end it at any time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._process: Process | None = None
        self._ended = False
        self._lock = threading.Lock()

    def end(self) -> None:
        """Another attempt follows."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._pool.kill(self._process)

    def take(self, process: Process) -> None:
        """The call has its process now; raises ``Refused`` when another attempt has followed meanwhile."""
        with self._lock:
            self._process = process
            if self._ended:
                raise Refused("stale", "Another attempt has followed this one.")


class Reception:
    """Serves connections, one at a time in each thread that calls ``serve``."""

    def __init__(self, pool: Pool, folders: Folders, *, memory_most_mib: int, confined: dict[str, Any]) -> None:
        self._pool = pool
        self._folders = folders
        self._memory_most = memory_most_mib
        self._confined = confined
        self._calls: dict[tuple[str, str], Call] = {}
        self._attempts: dict[str, Attempts] = {}
        self._exits = Exits()
        self._lock = threading.Lock()

    def serve(self, client: socket.socket) -> None:
        """Serve one connection to its end; raises nothing for what a client does."""
        with client, suppress(ProtocolError, OSError):
            client.settimeout(HEADER_SECONDS)
            try:
                payload = _header_payload(client)
                header = wire.parse_header(payload)
                if header.op in COPY_OPS:
                    self._copy(header, payload, client)
                elif header.op in FILE_OPS or header.op == "bash":
                    self._run(header, payload, client)
                else:
                    self._order(header, client)
            except Refused as refusal:
                wire.write_json(client, wire.REFUSED, {"reason": refusal.reason, "message": refusal.message})
            except ToolError as error:
                _settle(client, wire.failed(error.code, error.message))
            _see_off(client)

    # -------------------------------------------------------------------------------------------- orders to the server

    def _order(self, header: Header, client: socket.socket) -> None:
        """What the server does itself: all of it short, none of it a tool."""
        _settle(client, wire.completed(self._obey(header)))

    def _obey(self, header: Header) -> dict[str, Any]:
        if header.op == "ping":
            return {"engine": "virtual", "epoch": None, **self._confined}
        if header.op == "list_workspaces":
            return {"workspaces": self._folders.ages()}
        if header.op == "kill":
            return {"killed": self._cancel(_workspace(header), Args(header.args).text("call"))}
        if header.op == "close":
            self._pool.close(_workspace(header))
            return {}
        if header.op == "drop":
            self._attempts.pop(_workspace(header), None)
            return {"removed": self._pool.drop(_workspace(header))}
        if header.op == "workspace.swap":
            stage = check_name(Args(header.args).text("stage"))
            with self._attempt(header):
                return {"swapped": self._pool.swap(_workspace(header), stage)}
        raise Refused("bad_request", "The virtual Engine has no such operation.")

    @contextmanager
    def _attempt(self, header: Header) -> Iterator[Copier]:
        """Be the attempt that may work on this disk; every other one's calls have ended."""
        copy, attempt = copy_of(header)
        with self._lock:
            attempts = self._attempts.setdefault(_workspace(header), Attempts())
        copier = Copier(self._pool)
        token = attempts.enter(copy, attempt, copier.end)
        try:
            yield copier
        finally:
            attempts.leave(token)

    def _cancel(self, workspace: str, number: str) -> bool:
        with self._lock:
            call = self._calls.get((workspace, number))
        if call is None:
            return False
        call.cancelled = True
        with suppress(OSError):
            call.process.control.send(control.CANCEL + number.encode())
        return True

    # ----------------------------------------------------------------------------------------------------------- calls

    def _copy(self, header: Header, payload: bytes, client: socket.socket) -> None:
        """A call of a disk copy; one that writes a stage gets a process that is shut in with it and serves it alone."""
        stage = header.args.get("stage")
        wire.send_ahead(client)
        with self._attempt(header) as copier:
            if stage is not None:
                if header.op != "tree.write":
                    raise Refused("bad_request", "Only tree.write takes a stage.")
                Stages(self._folders).begin(_workspace(header), check_name(Args(header.args).text("stage")))
            self._run(header, payload, client, copier, stage)

    def _run(
        self,
        header: Header,
        payload: bytes,
        client: socket.socket,
        copier: Copier | None = None,
        stage: str | None = None,
    ) -> None:
        workspace = _workspace(header)
        _check(header)
        with self._way_out(header) as way_out:
            process = self._pool.acquire(workspace, self._memory(header), stage)
            again = False
            try:
                if copier is not None:
                    copier.take(process)
                client.settimeout(None)
                wire.write_frame(client, wire.ACCEPTED)
                again = self._serve_by(Call(header, client, process, way_out, _deadline(header)), payload)
                again = again and stage is None
            finally:
                if not again:
                    self._pool.kill(process)
                self._pool.release(process, again=again)

    def _serve_by(self, call: Call, payload: bytes) -> bool:
        """Hand the call to its process and wait for its end; True when the process may serve the next."""
        key = (_workspace(call.header), call.header.call)
        with self._lock:
            self._calls[key] = call
        try:
            _hand_over(call, without_token(call.header, payload))
            return self._attend(call)
        finally:
            with self._lock:
                self._calls.pop(key, None)

    @contextmanager
    def _way_out(self, header: Header) -> Iterator[Exit | None]:
        """The call's way out, if it has one, for as long as it runs."""
        way_out = self._exits.of(header)
        try:
            yield way_out
        finally:
            if way_out is not None:
                way_out.close()

    def _memory(self, header: Header) -> int:
        wanted = Args(header.limits).optional_number("memoryMib") or MEMORY_DEFAULT_MIB
        return max(MEMORY_LEAST_MIB, min(wanted, self._memory_most))

    def _attend(self, call: Call) -> bool:
        """Wait for the end of the call; True when its process may serve the next."""
        poll = select.poll()
        poll.register(call.process.control, select.POLLIN)
        poll.register(call.client, select.POLLRDHUP)
        if call.exit is not None:
            poll.register(call.exit.line, select.POLLIN)
        while True:
            ready = dict(poll.poll(LOOK_SECONDS * 1000))
            if call.process.control.fileno() in ready:
                return self._over(call)
            if call.exit is not None and call.exit.line.fileno() in ready and not call.exit.answer():
                poll.unregister(call.exit.line)
            if call.client.fileno() in ready:
                poll.unregister(call.client)
                call.gone = True
            self._press(call)

    def _press(self, call: Call) -> None:
        """End by force what does not end by itself in time."""
        now = time.monotonic()
        if (call.cancelled or call.gone) and call.deadline > now + STOP_SECONDS:
            call.deadline = now + STOP_SECONDS
        elif now >= call.deadline and not call.killed:
            call.timed_out = not (call.cancelled or call.gone)
            call.killed = True
            self._pool.kill(call.process)

    def _over(self, call: Call) -> bool:
        message = b""
        with suppress(OSError):
            message = call.process.control.recv(control.SHORT)
        if message:
            return message == control.AGAIN
        call.process.died.wait(STOP_SECONDS)
        if (last_words := _epitaph(call)) and not call.gone:
            call.client.settimeout(STOP_SECONDS)
            call.client.sendall(last_words)
        return False


def _settle(client: socket.socket, result: dict[str, Any]) -> None:
    """Accept and answer what the server did itself."""
    client.sendall(wire.encode(wire.ACCEPTED) + wire.encode_json(wire.RESULT, result))


def _header_payload(client: socket.socket) -> bytes:
    frame = wire.read_frame(client)
    if frame is None or frame[0] != wire.HEADER:
        raise ProtocolError("expected a header")
    return frame[1]


def _see_off(client: socket.socket) -> None:
    """Say that nothing follows and take what the client still sends: closing over it would destroy our answer."""
    client.settimeout(FAREWELL_SECONDS)
    client.shutdown(socket.SHUT_WR)
    while client.recv(wire.CHUNK):
        pass


def _workspace(header: Header) -> str:
    if header.workspace is None or not is_uid(header.workspace):
        raise Refused("bad_request", "workspace is not a UUID in lower case.")
    return header.workspace


def _check(header: Header) -> None:
    """Refuse arguments of the wrong type before anything has run."""
    Args(header.limits).optional_number("diskBytes")
    if header.op == "bash":
        Request(header.args)
    else:
        prepare(header.op, header.args)


def _deadline(header: Header) -> float:
    """When a process is ended by force: well after it should have ended the call itself."""
    limit = COPY_SECONDS if header.op in COPY_OPS else LONGEST_SECONDS
    if header.op == "bash" and isinstance(timeout := header.args.get("timeoutMs"), int):
        limit = min(limit, timeout / 1000 + STOP_SECONDS)
    return time.monotonic() + limit


def _hand_over(call: Call, payload: bytes) -> None:
    handles, word = [call.client.fileno()], control.CALL
    if call.exit is not None:
        handles, word = [*handles, call.exit.theirs.fileno()], control.CALL_OUT
    if len(payload) < control.INLINE:
        socket.send_fds(call.process.control, [word + payload], handles)
    else:
        long_header = os.memfd_create("header", os.MFD_CLOEXEC)
        try:
            os.write(long_header, payload)
            os.lseek(long_header, 0, os.SEEK_SET)
            socket.send_fds(call.process.control, [word], [*handles, long_header])
        finally:
            os.close(long_header)
    if call.exit is not None:
        call.exit.theirs.close()  # the process alone has it now: its end is then seen


def _epitaph(call: Call) -> bytes:
    """The frames for a call whose process is dead; none when the client shall see an interruption."""
    if call.cancelled:
        return wire.encode_json(wire.RESULT, wire.failed("tool.cancelled", "The call was cancelled."))
    if call.timed_out and call.header.op == "bash":
        return wire.encode_json(wire.RESULT, wire.completed(_ended_by(call, 124, 0)))
    number = call.process.crashed
    if number is None:
        return b""
    if call.header.op != "bash":
        return wire.encode_json(wire.RESULT, wire.failed("tool.failed", "The tool ran out of memory or crashed."))
    words = f"nylorun: ended by signal {number}: out of memory ({call.process.memory_mib} MiB) or crashed\n".encode()
    return wire.encode(wire.ERR, words) + wire.encode_json(
        wire.RESULT, wire.completed(_ended_by(call, 128 + number, len(words)))
    )


def _ended_by(call: Call, code: int, stderr: int) -> dict[str, Any]:
    milliseconds = int((time.monotonic() - call.started) * 1000)
    return {
        "exitCode": code,
        "timedOut": code == 124,
        "durationMs": milliseconds,
        "stdoutBytes": 0,
        "stderrBytes": stderr,
    }
