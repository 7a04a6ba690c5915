"""The process beside a running pod: it starts the pod, joins for it, writes its log, ends it, and tidies up after it.

A reader may rely on:
  * it is in a session of its own, holds nothing of who started it, and outlives worker, API and beat;
  * ``pod.json`` names it before the starter is told that all is well, and names the Engine as soon as that has a pid;
  * the Engine's socket is its own make: the pod gets it as a handle and cannot put another in its place;
  * a pod with a way out has a listener on its own loopback, which is served here (see ``egress``);
  * SIGTERM ends the pod: TERM to everything inside, KILL after the object's grace. SIGKILL ends it too, at once (the
    kernel passes it on), and then ``processes.sweep`` is left to whoever finds that out;
  * when the pod is over, however that came, no process, no cgroup and no socket of it is left, and it ends.

Standard library only, and of that only what starts fast: one idle supervisor is a good third of a pod's memory.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the module signal costs 6 ms and 0.9 MB for its enums
import _socket
import os
import select
import sys
import time
from _thread import start_new_thread

from environments.compute.engine import jsonc, wire
from environments.compute.local.launch import Launched, launch
from environments.compute.local.processes import marker, start_time, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from environments.compute.forwarding import Forwarder
    from environments.compute.local.joining import Joining

BACKLOG = 128
LOG_MAX = 64 * 1024
PING_SECONDS = 60.0
ASK_SECONDS = 5.0
OVERTIME = 0.5
ACCEPT_PAUSE = 0.05


class Supervisor:
    """One pod, from its start to its end."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._uid = str(plan["podUid"])
        self._folder = str(plan["folder"])
        self._socket = str(plan["socket"])
        self._logged = 0
        self._kill_at: float | None = None
        self._joining: Joining | None = None
        self._way_out: tuple[_socket.socket, Forwarder] | None = None
        self._ended: dict[str, str] | None = None
        self._wake, self._waker = os.pipe()
        self._log = self._open_log()

    # ------------------------------------------------------------------------------------------------ start

    def announce(self) -> None:
        """Say in ``pod.json`` who supervises this pod."""
        self._write_pod(None)

    def run(self) -> None:
        """Start the pod and stay with it to its end."""
        os.set_blocking(self._waker, False)
        _signal.set_wakeup_fd(self._waker)
        _signal.signal(_signal.SIGTERM, lambda *_: None)
        try:
            launched = self._start()
            engine = launched.read_child(self._wake)
            self._write_pod(engine)
            self._open_way_out(engine)
            start_new_thread(self._join, ())
            self._stay(launched)
        finally:
            self._tidy()

    def _start(self) -> Launched:
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        _forget(self._socket)
        listener.bind(self._socket)
        os.chmod(self._socket, 0o600)
        listener.listen(BACKLOG)
        try:
            return launch(self._plan, listener.fileno())
        finally:
            listener.close()  # only the Engine has it from here on: when that is gone, nobody seems to listen

    def _open_way_out(self, engine: int | None) -> None:
        gate = self._plan["egress"]
        if gate is None or engine is None:
            return
        from environments.compute import forwarding  # noqa: PLC0415 - few pods have a way out
        from environments.compute.local import egress  # noqa: PLC0415

        try:
            self._way_out = egress.listen(engine), forwarding.Forwarder(gate, self._egress_token)
        except OSError as error:  # it is over already, or this host does not let us in: then nothing leads out
            os.write(2, f"no way out: {error}\n".encode())

    def _egress_token(self) -> str | None:
        return None if self._joining is None else self._joining.egress_token

    def _write_pod(self, engine: int | None) -> None:
        own = os.getpid()
        value = {
            "podUid": self._uid,
            "opId": self._plan["opId"],
            "groups": self._plan["groups"],
            "unenforced": self._plan["unenforced"],
            "address": f"unix:{self._socket}",
            "supervisor": {"pid": own, "startTime": start_time(own)},
            "engine": None if engine is None else {"pid": engine, "startTime": start_time(engine)},
        }
        _write(f"{self._folder}/pod.json", jsonc.dumps(value))

    # ------------------------------------------------------------------------------------------------ joining

    def _join(self) -> None:
        """Wait for the Engine, then join for it and stay joined; in a thread of its own."""
        joining = self._joining = self._new_joining()
        try:
            self._ask("ping", {}, PING_SECONDS)
        except (OSError, wire.ProtocolError):
            return  # it never came up: the main thread sees its end
        message = joining.run(float(self._plan["renewSeconds"]))
        self._ended = {"reason": "join_refused", "message": message}
        os.write(self._waker, b"e")

    def _new_joining(self) -> Joining:
        from environments.compute.local.joining import Joining  # noqa: PLC0415 - loaded while the Engine starts

        body = {key: self._plan["join"][key] for key in ("environmentId", "podUid", "volumeId", "address")}
        return Joining(self._plan["join"]["url"], body, self._read_token, self._tell)

    def _read_token(self) -> str:
        try:
            with open(f"{self._folder}/run/join", encoding="utf-8") as file:
                return file.read()
        except OSError:
            return "-"  # none was ever given: the control plane refuses it like any wrong one

    def _tell(self, epoch: int) -> None:
        try:
            self._ask("joined", {"epoch": epoch}, ASK_SECONDS)
        except wire.ProtocolError as error:
            raise OSError("the Engine broke off") from error

    def _ask(self, op: str, args: dict[str, Any], seconds: float) -> None:
        """One call to the Engine; raises ``OSError`` when it does not answer in time."""
        with _socket_to(self._socket, seconds) as sock:
            header = {"v": wire.VERSION, "op": op, "call": f"supervisor-{op}", "epoch": None, "args": args}
            sock.sendall(wire.encode_json(wire.HEADER, header) + wire.encode(wire.END))
            while (frame := wire.read_frame(sock)) is not None:
                if frame[0] == wire.RESULT:
                    return
        raise OSError(f"the Engine did not answer {op}")

    # ------------------------------------------------------------------------------------------------ staying

    def _stay(self, launched: Launched) -> None:
        poll = select.poll()
        for handle in (launched.handle, launched.log, self._wake):
            poll.register(handle, select.POLLIN)
        if self._way_out is not None:
            poll.register(self._way_out[0], select.POLLIN)
        while True:
            ready = {handle for handle, _ in poll.poll(self._patience())}
            if self._way_out is not None and self._way_out[0].fileno() in ready:
                self._let_out(*self._way_out)
            if launched.log in ready and not self._copy_log(launched.log):
                poll.unregister(launched.log)
            if self._wake in ready:
                self._stop()
            if launched.handle in ready or self._is_overdue():
                return

    def _let_out(self, listener: _socket.socket, forwarder: Forwarder) -> None:
        try:
            forwarder.take(listener)
        except OSError:  # out of handles: those of ended connections are coming back
            time.sleep(ACCEPT_PAUSE)  # noqa: TID251 - the pod waits for nothing else of this thread

    def _patience(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic()) * 1000

    def _is_overdue(self) -> bool:
        return self._kill_at is not None and time.monotonic() >= self._kill_at

    def _stop(self) -> None:
        """TERM to all of the pod. An Engine that does not even take the order is not waited for."""
        os.read(self._wake, 64)
        if self._kill_at is not None:
            return
        grace = self._grace()
        self._kill_at = time.monotonic() + grace + OVERTIME
        try:
            self._ask("stop", {"graceMs": int(grace * 1000)}, min(ASK_SECONDS, grace + OVERTIME))
        except (OSError, wire.ProtocolError):
            self._kill_at = time.monotonic()

    def _grace(self) -> float:
        """The grace of the object as it is now, since a later spec may have brought this end."""
        try:
            with open(f"{self._folder}/object.json", "rb") as file:
                return float(jsonc.loads(file.read())["graceSeconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0

    def _open_log(self) -> int:
        return os.open(f"{self._folder}/run/log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def _copy_log(self, pipe: int) -> bool:
        """Keep the first ``LOG_MAX`` bytes; the rest is read and dropped, so that nobody blocks on the pipe."""
        data = os.read(pipe, 65536)
        kept = data[: max(0, LOG_MAX - self._logged)]
        if kept:
            self._logged += os.write(self._log, kept)
        return bool(data)

    # ------------------------------------------------------------------------------------------------ the end

    def _tidy(self) -> None:
        if self._ended is not None:
            value = {"podUid": self._uid, **self._ended}
            _write(f"{self._folder}/run/ended.json", jsonc.dumps(value))
        sweep(marker(self._uid), list(self._plan["groups"]))
        _forget(self._socket)


class _socket_to:
    """A connection to a Unix socket with a time limit, closed at the end."""

    def __init__(self, path: str, seconds: float) -> None:
        self._sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._sock.settimeout(seconds)
        self._path = path

    def __enter__(self) -> _socket.socket:
        self._sock.connect(self._path)
        return self._sock

    def __exit__(self, *_: object) -> None:
        self._sock.close()


def _write(path: str, text: str) -> None:
    """Put ``text`` at ``path`` whole; a folder that was taken away meanwhile is not made again."""
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "w", encoding="ascii") as file:
            file.write(text)
        os.rename(beside, path)
    except FileNotFoundError:
        return


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _detach(supervisor: Supervisor) -> None:
    """Leave the starter's session and streams. What goes wrong from here on stands in the pod's log."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(supervisor._log, 2)
    os.close(null)


def main() -> None:
    """Read the plan from standard input; return (in the starter's process) once ``pod.json`` names the supervisor."""
    plan = jsonc.loads(sys.stdin.buffer.read())
    ready, say_ready = os.pipe()
    if os.fork() != 0:
        os.close(say_ready)
        sys.exit(0 if os.read(ready, 1) else 1)
    os.close(ready)
    supervisor = Supervisor(plan)
    _detach(supervisor)
    supervisor.announce()
    os.write(say_ready, b"r")
    os.close(say_ready)
    supervisor.run()
    os._exit(0)
