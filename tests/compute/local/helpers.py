"""What the tests of local pods share: an Engine client, a control plane of a few lines, and looks at the host."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from environments.compute.contract import SandboxSpec, SandboxStatus
from environments.compute.engine import wire
from environments.compute.local.driver import LocalDriver
from environments.compute.local.places import Place
from environments.compute.local.processes import MARKER

LETTERS = str.maketrans("0189", "wxyz")  # a name has no 0, 1, 8 and 9
# Names that no other pod of this host has: tests count, and kill, by them.
NAME, SHARED, OTHER = (f"sbx-{secrets.token_hex(8).translate(LETTERS)}-g0" for _ in range(3))
INSTALLATION = "5f0f2b0e-8f5b-4d5e-9b0a-1d1f6a1f2a3b"
_calls = itertools.count()


def eventually(check: Callable[[], Any], seconds: float = 10.0, pause: float = 0.005) -> Any:
    """Ask ``check`` until it says something true; its last word is in the failure."""
    deadline = time.monotonic() + seconds
    waiter = threading.Event()
    while not (answer := check()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {answer!r}"
        waiter.wait(pause)
    return answer


@dataclass
class Reply:
    """All that an Engine answered to one call."""

    accepted: bool = False
    refusal: dict[str, Any] | None = None
    result: dict[str, Any] = field(default_factory=dict)
    out: bytes = b""
    err: bytes = b""
    data: bytes = b""
    frames: list[bytes] = field(default_factory=list)

    @property
    def output(self) -> dict[str, Any]:
        assert self.result.get("kind") == "completed", self.result or self.refusal
        return dict(self.result["output"])

    @property
    def code(self) -> str:
        assert self.result.get("kind") == "failed", self.result or self.refusal
        return str(self.result["code"])

    @property
    def text(self) -> str:
        return self.out.decode()

    def take(self, kind: bytes, payload: bytes) -> None:
        self.frames.append(kind)
        if kind == wire.ACCEPTED:
            self.accepted = True
        elif kind == wire.REFUSED:
            self.refusal = json.loads(payload)
        elif kind == wire.RESULT:
            self.result = json.loads(payload)
        elif kind == wire.OUT:
            self.out += payload
        elif kind == wire.ERR:
            self.err += payload
        else:
            self.data += payload


class Client:
    """Calls the Engine at ``address`` as the control plane does."""

    def __init__(self, address: str, epoch: int = 1) -> None:
        self.path = address.removeprefix("unix:")
        self.epoch = epoch

    def open(
        self, op: str, args: dict[str, Any], *, call: str | None = None, epoch: int | None = None
    ) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(30)
        sock.connect(self.path)
        header = {
            "v": 1, "op": op, "call": call or f"call-{next(_calls)}", "epoch": self.epoch if epoch is None else epoch,
            "args": args,
        }  # fmt: skip
        wire.write_json(sock, wire.HEADER, header)
        return sock

    def call(self, op: str, args: dict[str, Any], body: bytes = b"", **more: Any) -> Reply:
        with self.open(op, args, **more) as sock:
            try:
                for frame in wire.chunks(wire.DATA, body):
                    sock.sendall(frame)
                wire.write_frame(sock, wire.END)
            except BrokenPipeError:  # the answer came before the body was wanted
                pass
            return drain(sock)

    def bash(self, command: str, stdin: bytes = b"", **more: Any) -> Reply:
        args = {"command": command, "cwd": "/workspace", "env": {}, "timeoutMs": 20_000, "stream": False, **more}
        return self.call("bash", args, stdin)

    def sh(self, command: str, **more: Any) -> str:
        """The output of a command that must end well."""
        reply = self.bash(command, **more)
        assert reply.output["exitCode"] == 0, (command, reply)
        return reply.text.strip()


def drain(sock: socket.socket) -> Reply:
    reply = Reply()
    while (frame := wire.read_frame(sock)) is not None:
        reply.take(*frame)
        if frame[0] in (wire.RESULT, wire.REFUSED):
            break
    return reply


class ControlPlane:
    """Answers join and renew on loopback; ``script`` holds statuses for the next requests, 200 afterwards."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], str | None]] = []
        self.script: list[int] = []
        self.epoch = 0
        self.token = "join-token"
        plane = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = plane.answer(self.path, body, self.headers.get("Authorization"))
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, body: dict[str, Any], authorization: str | None) -> tuple[int, dict[str, Any]]:
        self.requests.append((path, body, authorization))
        status = self.script.pop(0) if self.script else 200
        if status != 200:
            return status, {"status": "rejected", "code": "join_refused", "message": "Join refused"}
        if path == "/v1/engine/join":
            if body["joinToken"] != self.token:
                return 401, {"status": "rejected", "code": "join_refused", "message": "Join refused"}
            self.epoch += 1
        token = f"host-{self.epoch}-{len(self.requests)}"
        return 200, {
            "hostToken": token,
            "egressToken": "e",
            "epoch": self.epoch,
            "expiresIn": 900,
            "jwks": {"keys": []},
        }

    def joins(self) -> list[dict[str, Any]]:
        return [body for path, body, _ in self.requests if path == "/v1/engine/join"]

    def renewals(self) -> list[str | None]:
        return [authorization for path, _, authorization in self.requests if path == "/v1/engine/renew"]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def spec(plane_url: str, rev: int = 1, mode: str = "Running", **more: Any) -> SandboxSpec:
    name = more.pop("name", NAME)
    values: dict[str, Any] = {
        "name": name, "op_id": f"{name}.r{rev}", "installation": INSTALLATION, "uid": "uid-1", "environment_id": "demo",
        "mode": mode, "cpus": 1, "memory_mib": 256, "storage_gib": 1, "grace_seconds": 2.0, "engine_url": plane_url,
        "egress_url": "", "join_token": "join-token",
    }  # fmt: skip
    return SandboxSpec(**{**values, **more})


def ready(driver: LocalDriver, name: str = NAME) -> SandboxStatus:
    eventually(lambda: driver.status(name).ready)
    return driver.status(name)


def joined(driver: LocalDriver, plane: ControlPlane, name: str = NAME) -> Client:
    """A client of the pod under ``name`` once its Engine has been told its epoch."""
    status = ready(driver, name)
    assert status.address is not None

    def epoch() -> int | None:
        answer: int | None = Client(status.address or "").call("ping", {}).output["epoch"]
        return answer

    return Client(status.address, eventually(lambda: epoch() == plane.epoch and plane.epoch))


def pod_note(driver_root: Path, name: str = NAME) -> dict[str, Any]:
    return dict(json.loads((driver_root / name / "pod.json").read_text()))


def our_processes(uid: str = "", name: str = NAME) -> list[int]:
    """Processes of the pods of that name, which no one else on this host has; or of the one pod with ``uid``."""
    wanted, found = (MARKER + uid).encode(), []
    for entry in filter(lambda entry: entry.name.isdigit(), Path("/proc").iterdir()):
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if name.encode() in arguments and any(part.startswith(wanted) for part in arguments):
            found.append(int(entry.name))
    return found


def our_groups(name: str = NAME) -> list[Path]:
    return [Path(folder) / sub for folder, subs, _ in os.walk("/sys/fs/cgroup") for sub in subs if f"-{name}-" in sub]


def seen_from_outside(root: Path, name: str = NAME) -> Path:
    """The workspace of a running pod as this host's root sees it."""
    place = Place(root, name)
    engine = pod_note(root, name)["engine"]["pid"]
    return Path(f"/proc/{engine}/root/workspace") if place.is_image() else place.workspace


def loops(root: Path) -> list[str]:
    """The files beneath ``root`` that loop devices of this host hold, deleted ones included."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # it was let go of just now
            found.append(path.read_text().strip())
    return [file for file in found if file.startswith(f"{root}/")]


@contextmanager
def own_pods(driver: LocalDriver, *names: str) -> Iterator[None]:
    """Delete ``names`` at the end, whatever the test did to them."""
    try:
        yield
    finally:
        for name in names:
            driver.delete(name)
