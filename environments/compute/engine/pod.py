"""The Engine of a pod: PID 1 inside the sandbox, serving the Engine channel on a socket it is handed.

A reader may rely on:
  * a thread per connection, at most ``MAX_CALLS`` at once; others are refused as ``busy``;
  * before ``joined`` and for another epoch than the last ``joined`` one, every tool is refused as ``epoch``. A call for
    a later epoch waits up to ``EPOCH_WAIT`` for it: the control plane may hear of a join before this Engine does;
  * ``kill`` and a lost connection end a call's processes (see ``command``); ``stop`` sends TERM to every process, waits
    for them up to ``graceMs``, and ends the pod;
  * while a disk is read (``tree.hold``) nothing is run and no file is changed; such calls are refused as ``busy``;
  * when the sandbox has no room for another thread (a fork bomb), ``CONTROL_OPS`` and ``kill`` are served all the same;
  * commands, which run as the same user, can neither read this process's memory nor signal it.

Standard library only, and of that only what starts fast.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the module signal costs 6 ms and 0.9 MB for its enums
import _socket
import os
import resource
import sys
import time
from _thread import allocate_lock, stack_size, start_new_thread

from environments.compute.engine import libc, wire
from environments.compute.engine.attempts import Attempts
from environments.compute.engine.children import SIGCONT, SIGINT, SIGTERM, Child, Children, signal_everybody
from environments.compute.engine.command import Call, Request, shell
from environments.compute.engine.files import COPY_OPS, FILE_OPS, Args, copy_of, prepare
from environments.compute.engine.tree import Tree, tool_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WORKSPACE = "/workspace"
MAX_CALLS = 128
EPOCH_WAIT = 1.0
EPOCH_POLL = 0.005
HEADER_SECONDS, HEADER_SECONDS_AT_ONCE = 30.0, 0.5
LINGER_SECONDS = 2.0
ACCEPT_PAUSE = 0.05
STACK = 256 * 1024
PR_SET_DUMPABLE = 4
OPEN_FILES = 4096


class Pod:
    """The state of one Engine: its epoch and the calls under way."""

    def __init__(self, tree: Tree, children: Children) -> None:
        self.tree = tree
        self.children = children
        self.attempts = Attempts()
        self.epoch: int | None = None
        self._lock = allocate_lock()
        self._cancels: dict[str, Callable[[], None]] = {}

    def begin(self, call: str, cancel: Callable[[], None]) -> None:
        with self._lock:
            if call in self._cancels:
                raise wire.Refused("busy", "A call of this id is running.")
            if len(self._cancels) >= MAX_CALLS:
                raise wire.Refused("busy", f"{MAX_CALLS} calls are running.")
            self._cancels[call] = cancel

    def end(self, call: str) -> None:
        with self._lock:
            self._cancels.pop(call, None)

    def cancel(self, call: str) -> bool:
        """Ask a call to end; ``False`` when it is not running. Holding the lock keeps its handles open meanwhile."""
        with self._lock:
            cancel = self._cancels.get(call)
            if cancel is not None:
                cancel()
        return cancel is not None

    def require_epoch(self, epoch: int | None) -> None:
        deadline = time.monotonic() + EPOCH_WAIT
        while epoch is not None and epoch > (self.epoch or 0) and time.monotonic() < deadline:
            time.sleep(EPOCH_POLL)  # noqa: TID251 - a lock with a time limit would need the module threading
        if epoch is None or epoch != self.epoch:
            raise wire.Refused("epoch", "This Engine serves another epoch.")


class Connection:
    """One connection: reads its header, runs its call, answers once."""

    def __init__(self, pod: Pod, sock: _socket.socket) -> None:
        self._pod = pod
        self._sock = sock
        self._cancelled = False

    def serve(self) -> None:
        """Serve the connection to its end, in a thread of its own."""
        self._serve(HEADER_SECONDS, short_only=False)
        self._linger()
        self._sock.close()

    def serve_at_once(self) -> None:
        """Serve what takes no time and refuse the rest, in the thread that accepts."""
        self._serve(HEADER_SECONDS_AT_ONCE, short_only=True)
        self._sock.close()

    def _serve(self, patience: float, *, short_only: bool) -> None:
        try:
            header = self._header(patience)
            if header is not None:
                self._run(header, short_only=short_only)
        except wire.Refused as refusal:
            self._try_send(wire.REFUSED, {"reason": refusal.reason, "message": refusal.message})
        except (wire.ProtocolError, wire.ClientGone, OSError):
            return  # nobody is left to answer

    def _linger(self) -> None:
        """Take what the client still sends: closing on unread bytes would cut off the answer it has not read yet."""
        try:
            self._sock.shutdown(_socket.SHUT_WR)
            self._sock.settimeout(LINGER_SECONDS)
            while self._sock.recv(wire.CHUNK):
                pass
        except OSError:
            return

    def _header(self, patience: float) -> wire.Header | None:
        self._sock.settimeout(patience)
        frame = wire.read_frame(self._sock)
        self._sock.settimeout(None)
        if frame is None:
            return None
        if frame[0] != wire.HEADER:
            raise wire.ProtocolError("expected a header")
        return wire.parse_header(frame[1])

    def _run(self, header: wire.Header, *, short_only: bool) -> None:
        if short_only and header.op not in SHORT_OPS:
            raise wire.Refused("busy", "The sandbox has no room for another process.")
        if header.op in CONTROL_OPS:
            output = CONTROL_OPS[header.op](self._pod, Args(header.args))
            wire.write_frame(self._sock, wire.ACCEPTED)
            wire.write_json(self._sock, wire.RESULT, wire.completed(output))
            return
        self._pod.require_epoch(header.epoch)
        if self._pod.children.halted and header.op in CHANGING_OPS:
            raise wire.Refused("busy", "The disk is being read.")
        if header.op == "bash":
            self._bash(header)
        elif header.op in COPY_OPS or header.op == "tree.hold":
            self._copy(header)
        elif header.op in FILE_OPS:
            self._file(header)
        elif header.op == "kill":
            killed = self._pod.cancel(Args(header.args).text("call", most=256))
            wire.write_frame(self._sock, wire.ACCEPTED)
            wire.write_json(self._sock, wire.RESULT, wire.completed({"killed": killed}))
        else:
            raise wire.Refused("bad_request", f"{header.op} is not an operation of this Engine.")

    def _try_send(self, kind: bytes, value: dict[str, Any]) -> None:
        try:
            wire.write_json(self._sock, kind, value)
        except OSError:
            return

    # ------------------------------------------------------------------------------------------------ files

    def _file(self, header: wire.Header) -> None:
        run = prepare(header.op, header.args)
        self._pod.begin(header.call, self._cancel_file)
        try:
            wire.write_frame(self._sock, wire.ACCEPTED)
            result = self._file_result(run)
        finally:
            self._pod.end(header.call)
        wire.write_json(self._sock, wire.RESULT, result)

    def _copy(self, header: wire.Header) -> None:
        """A call of a disk copy: one that another attempt follows loses its connection, wherever it stands."""
        copy, attempt = copy_of(header)
        wire.send_ahead(self._sock)
        token = self._pod.attempts.enter(copy, attempt, self._disconnect)
        try:
            (self._hold if header.op == "tree.hold" else self._file)(header)
        finally:
            self._pod.attempts.leave(token)

    def _disconnect(self) -> None:
        try:
            self._sock.shutdown(_socket.SHUT_RDWR)
        except OSError:  # its client has just left
            return

    def _hold(self, header: wire.Header) -> None:
        from environments.compute.engine import holding  # noqa: PLC0415 - loaded when a disk is first copied

        patience = Args(header.args).number("patienceMs", 1, 600_000) / 1000
        self._pod.begin(header.call, self._disconnect)
        try:
            wire.write_frame(self._sock, wire.ACCEPTED)
            result = holding.serve(self._sock, self._pod.children, self._pod.tree.root, patience)
        finally:
            self._pod.end(header.call)
        if result is not None:
            wire.write_json(self._sock, wire.RESULT, result)

    def _cancel_file(self) -> None:
        self._cancelled = True
        try:
            self._sock.shutdown(_socket.SHUT_RD)  # wakes a call that waits for its body
        except OSError:  # its client has just left
            return

    def _file_result(self, run: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        try:
            return wire.completed(run(self._pod.tree, wire.read_body(self._sock), self._send_data))
        except wire.ToolError as error:
            return wire.failed(error.code, error.message)
        except (wire.Cancelled, wire.ClientGone, wire.ProtocolError) as ended:
            if not self._cancelled and not isinstance(ended, wire.Cancelled):
                raise
            return wire.failed("tool.cancelled", "The call was ended on request.")

    def _send_data(self, data: bytes | memoryview) -> None:
        if self._cancelled:
            raise wire.Cancelled
        wire.write_frame(self._sock, wire.DATA, data)

    # ------------------------------------------------------------------------------------------------ commands

    def _bash(self, header: wire.Header) -> None:
        request = Request(header.args)
        cancel = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            self._pod.begin(header.call, lambda: os.eventfd_write(cancel, 1))
            try:
                wire.write_frame(self._sock, wire.ACCEPTED)
                result = self._command_result(request, cancel)
            finally:
                self._pod.end(header.call)
        finally:
            os.close(cancel)
        if result is not None:
            wire.write_json(self._sock, wire.RESULT, result)

    def _command_result(self, request: Request, cancel: int) -> dict[str, Any] | None:
        try:
            child, pipes = self._start(request)
        except wire.ToolError as error:
            return wire.failed(error.code, error.message)
        except OSError as error:
            failure = tool_error(error, "The command")
            return wire.failed("tool.failed", failure.message)
        return Call(self._sock, child, request, pipes, cancel).run()

    def _start(self, request: Request) -> tuple[Child, tuple[int, int, int]]:
        """Start the shell; gives the child and our ends of its three pipes."""
        folder = self._pod.tree.folder(request.folder)
        argv, script = shell(request.command)
        pairs = [os.pipe(), os.pipe(), os.pipe()]
        theirs = (pairs[0][0], pairs[1][1], pairs[2][1])
        ours = (pairs[0][1], pairs[1][0], pairs[2][0])
        try:
            streams = theirs if script is None else (*theirs, script)
            return self._pod.children.start(argv, {**os.environ, **request.env}, folder, streams), ours
        except OSError:
            for handle in ours:
                os.close(handle)
            raise
        finally:
            for handle in (*theirs, folder, *(() if script is None else (script,))):
                os.close(handle)


# ---------------------------------------------------------------------------------------------------- control


def _ping(pod: Pod, _args: Args) -> dict[str, Any]:
    return {"engine": "pod", "epoch": pod.epoch}


def _joined(pod: Pod, args: Args) -> dict[str, Any]:
    pod.epoch = args.number("epoch", 0, 1 << 62)
    return {}


def _stop(_pod: Pod, args: Args) -> dict[str, Any]:
    grace = args.number("graceMs", 0, 600_000) / 1000
    try:
        start_new_thread(_stop_everything, (grace,))
    except RuntimeError:  # no room to wait in: the pod ends at once
        _stop_everything(0)
    return {}


def _stop_everything(grace: float) -> None:
    """TERM to everybody, and the end of the pod once nobody is left or ``grace`` is over. The kernel kills the rest."""
    deadline = time.monotonic() + grace
    alive = signal_everybody(SIGTERM)
    signal_everybody(SIGCONT)  # what stands still hears nothing
    while alive and time.monotonic() < deadline:
        time.sleep(EPOCH_POLL)  # noqa: TID251 - as in require_epoch
        alive = signal_everybody(0)
    os._exit(0)


# Of the supervisor, which knows no epoch before it has joined.
CONTROL_OPS: dict[str, Callable[[Pod, Args], dict[str, Any]]] = {"ping": _ping, "joined": _joined, "stop": _stop}
SHORT_OPS = frozenset((*CONTROL_OPS, "kill"))
CHANGING_OPS = frozenset(("bash", "write", "remove", "move", "tree.write"))


def _limit(open_files: int, processes: int) -> None:
    """Room for many calls; and a second fence around fork bombs, counted within this user namespace (Linux 5.14)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = processes if hard == resource.RLIM_INFINITY else min(processes, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def main(listening: int, processes: int) -> None:
    """Serve for ever on the socket of number ``listening``, in a pod of at most ``processes`` processes."""
    if os.getpid() != 1:  # `stop` signals everybody: on a host that would be the host
        sys.exit("the Engine of a pod runs as its first process only")
    os.set_inheritable(listening, False)
    # Close this process to the commands of its own user: ptrace, /proc/1/mem, /proc/1/fd, /proc/1/environ.
    libc.call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    _signal.signal(SIGINT, _signal.SIG_IGN)  # the one signal that Python gives a handler, and PID 1 would so receive
    _limit(OPEN_FILES, processes)
    os.umask(0o022)
    stack_size(STACK)
    pod = Pod(Tree(WORKSPACE), Children())
    pod.children.reap_in_background()
    listener = _socket.socket(fileno=listening)
    while True:
        _accept(listener, pod)


def _accept(listener: _socket.socket, pod: Pod) -> None:
    try:
        handle, _ = listener._accept()  # type: ignore[attr-defined]  # what socket.accept() calls
    except OSError:  # out of handles: those of ended calls are coming back
        time.sleep(ACCEPT_PAUSE)  # noqa: TID251 - as in require_epoch
        return
    connection = Connection(pod, _socket.socket(fileno=handle))
    try:
        start_new_thread(connection.serve, ())
    except RuntimeError:  # the limit on processes counts threads too
        connection.serve_at_once()
