"""Engines made of a script, for tests of the control plane's end of the channel."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from environments.compute.channel import EngineChannel
from environments.compute.contract import Answer
from environments.compute.engine import wire

Script = Callable[[socket.socket], None]
MIB = 1 << 20
ACCEPT = wire.encode(wire.ACCEPTED)
BASH_OUTPUT = {"exitCode": 0, "timedOut": False, "durationMs": 5, "stdoutBytes": 0, "stderrBytes": 0}


def result(output: Any) -> bytes:
    return wire.encode_json(wire.RESULT, {"kind": "completed", "output": output})


@contextmanager
def engine(tmp_path: Path, script: Script) -> Iterator[EngineChannel]:
    """An Engine that reads header and body, then does what ``script`` says, then ends the connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine"))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):
                client, _ = listener.accept()
                with client, suppress(OSError):
                    script(client)

        thread = threading.Thread(target=serve)
        thread.start()
        yield EngineChannel(f"unix:{tmp_path / 'engine'}")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=10)
        assert not thread.is_alive()


def taken(client: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Header and body of a call."""
    frame = wire.read_frame(client)
    assert frame is not None
    return json.loads(frame[1]), b"".join(wire.read_body(client))


def says(*frames: bytes) -> Script:
    def script(client: socket.socket) -> None:
        taken(client)
        for frame in frames:
            client.sendall(frame)

    return script


def call(channel: EngineChannel, op: str = "stat", **options: Any) -> Answer:
    options = {"call_id": "c-1", "epoch": 3, "time_limit_s": 5.0, "args": {}, **options}
    return channel.call(op, options.pop("args"), **options)
