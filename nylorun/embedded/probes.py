"""Probes: whether a part answers, asked the way its callers ask. Each returns in a few seconds and never raises."""

import http.client
import json
import socket
import struct
from pathlib import Path

PROBE_SECONDS = 2.0
PING = {"v": 1, "op": "ping", "call": "up", "epoch": 0, "args": {}}


def http_status(port: int, path: str, key: str | None = None) -> int | None:
    """The status the API on 127.0.0.1 answers a GET with, as the application of `key`; None when it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", path, headers={} if key is None else {"Authorization": f"Bearer {key}"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def engine_ready(path: Path) -> bool:
    """Whether the virtual Engine completes a ping: header, end of body, then frames up to the result."""
    header = json.dumps(PING).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as frames:
            connection.settimeout(PROBE_SECONDS)
            connection.connect(str(path))
            connection.sendall(_frame(b"H", header) + _frame(b"Z", b""))
            while (kind := frames.read(1)) in (b"A", b"O", b"E", b"D"):
                frames.read(*struct.unpack(">I", frames.read(4)))
            return kind == b"R"
    except (OSError, struct.error):
        return False


def marked_ready(mark: Path, pid: int) -> bool:
    """Whether the process `pid` wrote its number to `mark`, which it does once it takes work."""
    try:
        return mark.read_text().strip() == str(pid)
    except FileNotFoundError:
        return False


def _frame(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack(">I", len(payload)) + payload
