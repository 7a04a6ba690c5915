"""Running one command of a workspace in the bash interpreter of this process.

A reader may rely on:
  * each command has a shell of its own: nothing but files below ``/workspace`` goes from one to the next;
  * output is passed on as the interpreter gives it, in pieces; of what is not streamed the last ``OUTPUT_CAP`` bytes
    of each stream are kept;
  * a command ends when it is done, when its time is over (exit code 124), when the client cancels or leaves, or when it
    fills the disk far beyond its limit; see ``watch``.

Unlike a real bash: programs are the interpreter's own (no other language; ``curl`` and ``wget`` are ours, see
``programs``), background jobs end with the command, links may only lead down from where they are, functions nest 16
deep, one ``sleep`` lasts at most 60 s, each stream ends after 10 MiB, and output that is not UTF-8 leaves as U+FFFD
(files keep every byte, and so do pipes but those to and from ``curl`` and ``wget``).
"""

from __future__ import annotations

import shlex
import socket
import time

from bashkit import Bash, ExecResult, ExecutionProfile, FileSystem

from environments.compute.engine import wire
from environments.compute.engine.command import OUTPUT_CAP, Request
from environments.compute.engine.wire import ClientGone
from environments.compute.virtual.programs import Programs

HOME = "/workspace"
STREAM_FRAME = 16 * 1024  # small enough for the kernel to take whole, so that no death of ours cuts a frame
INTERPRETER_SECONDS = 4000.0  # above every time limit of a call; ours comes first
_INPUT = "/dev/.input"


class Tail:
    """The last ``OUTPUT_CAP`` bytes of a stream."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > 2 * OUTPUT_CAP:
            del self._kept[:-OUTPUT_CAP]

    def last(self) -> bytes:
        return bytes(self._kept[-OUTPUT_CAP:])


class Shell:
    """The interpreter of this process: empty for every command, warm for all but the first."""

    def __init__(self) -> None:
        self.programs = Programs()
        self.bash = Bash(
            timeout_seconds=INTERPRETER_SECONDS,
            cwd=HOME,
            profile=ExecutionProfile.Interactive,
            custom_builtins=self.programs.builtins,
        )

    def mount(self, path: str) -> None:
        """Put the folder ``path`` where commands see ``/workspace``."""
        self.bash.mount(HOME, FileSystem.real(path, writable=True))

    def clear(self) -> None:
        """Forget everything a command left: variables, functions, files outside ``/workspace``."""
        self.bash.reset()

    def script(self, request: Request, cwd: str, stdin: bytes) -> str:
        """What to run for ``request``; ``cwd`` is absolute and exists."""
        if stdin:
            self.bash.fs().write_file(_INPUT, stdin)
        go_there = "" if cwd == HOME else f"cd {shlex.quote(cwd)} && "
        env = "".join(f"{name}={shlex.quote(value)} " for name, value in request.env.items())
        return f"{go_there}{env}bash -lc {shlex.quote(request.command)} < {_INPUT if stdin else '/dev/null'}"


class Command:
    """One command: what is asked, and what has come of it.

    ``reason`` is why it ends before it is done, set by whoever ends it; ``timed_out`` says that its time is over.
    """

    def __init__(self, call: str, request: Request, shell: Shell, script: str, client: socket.socket) -> None:
        self.call = call
        self.client = client
        self._shell = shell
        self.started = time.monotonic()
        self.deadline = self.started + request.timeout
        self.reason: Exception | None = None
        self.timed_out = False
        self.sending = False
        self._script = script
        self._stream = request.stream
        self._tails = {wire.OUT: Tail(), wire.ERR: Tail()}
        self._totals = {wire.OUT: 0, wire.ERR: 0}

    def execute(self) -> ExecResult:
        """Run to the end, or until ``stop`` is heard."""
        return self._shell.bash.execute_sync(self._script, on_output=self._take)

    def stop(self) -> None:
        """Ask the interpreter to end, and what it waits for on the network."""
        self._shell.bash.cancel()
        self._shell.programs.stop()

    def last_frames(self, result: ExecResult | None) -> bytes:
        """What is left to send; ``None`` for a command that is still inside when its time is over."""
        if self.timed_out:
            result = None
        if result is not None and result.error:
            self._pass_on(wire.ERR, f"bash: {result.error}\n".encode())
        output = {
            "exitCode": 124 if result is None else result.exit_code & 255,
            "timedOut": self.timed_out,
            "durationMs": int((time.monotonic() - self.started) * 1000),
            "stdoutBytes": self._totals[wire.OUT],
            "stderrBytes": self._totals[wire.ERR],
        }
        kept = [frame for kind, tail in self._tails.items() for frame in wire.chunks(kind, tail.last())]
        return b"".join([*kept, wire.encode_json(wire.RESULT, wire.completed(output))])

    def _take(self, out: str, err: str) -> None:
        if out:
            self._pass_on(wire.OUT, out.encode("utf-8", "replace"))
        if err:
            self._pass_on(wire.ERR, err.encode("utf-8", "replace"))

    def _pass_on(self, kind: bytes, data: bytes) -> None:
        self._totals[kind] += len(data)
        if not self._stream:
            self._tails[kind].add(data)
        elif self.reason is None:
            self._send(kind, data)

    def _send(self, kind: bytes, data: bytes) -> None:
        self.sending = True
        try:
            for start in range(0, len(data), STREAM_FRAME):
                self.client.sendall(wire.encode(kind, data[start : start + STREAM_FRAME]))
        except OSError:
            self.reason = ClientGone()
            self._shell.bash.cancel()
        finally:
            self.sending = False
