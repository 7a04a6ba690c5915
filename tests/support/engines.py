"""A scripted Engine behind a real Unix socket: accepts, refuses or drops calls as the test says."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.compute.engine import wire

Script = Callable[[dict[str, Any], bytes], dict[str, Any] | str]


def echo(header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Every command prints itself."""
    if header["op"] != "bash":
        return {"kind": "failed", "code": "tool.failed", "message": "only bash"}
    text = header["args"]["command"].encode()
    return {"stdout": text, "output": {"exitCode": 0, "timedOut": False, "durationMs": 1,
                                       "stdoutBytes": len(text), "stderrBytes": 0}}  # fmt: skip


@dataclass
class ScriptedEngine:
    """What was asked, and what is answered: a result, ``"refuse"`` or ``"drop"`` (accept, then go away)."""

    address: str
    script: Script = echo
    calls: list[dict[str, Any]] = field(default_factory=list)

    def serve(self, connection: socket.socket) -> None:
        """One call on one connection."""
        with connection:
            header, body = _request(connection)
            self.calls.append(header)
            answer = self.script(header, body)
            if answer == "refuse":
                connection.sendall(wire.encode_json(wire.REFUSED, {"reason": "epoch", "message": "another epoch"}))
                return
            connection.sendall(wire.encode(wire.ACCEPTED))
            if not isinstance(answer, dict):
                return
            if "stdout" in answer:
                connection.sendall(wire.encode(wire.OUT, answer.pop("stdout")))
            connection.sendall(wire.encode_json(wire.RESULT, {"kind": "completed", **answer}))


def _request(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {}
    body = b""
    while (frame := wire.read_frame(connection)) is not None:
        kind, payload = frame
        if kind == wire.HEADER:
            header = json.loads(payload)
        elif kind == wire.DATA:
            body += payload
        elif kind == wire.END:
            break
    return header, body


@contextmanager
def scripted_engine(script: Script = echo) -> Iterator[ScriptedEngine]:
    """A listening Engine; every connection is served in a thread of its own."""
    with tempfile.TemporaryDirectory(prefix="eng-") as folder:
        path = Path(folder) / "engine.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(64)
        engine = ScriptedEngine(f"unix:{path}", script)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=engine.serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield engine
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
