"""The threads that serve requests: gunicorn's, with patience that ends and errors in the words of this interface.

* A peer that neither sends nor takes a byte for ``PATIENCE`` seconds loses its connection, whether it stopped inside
  its headers, its body or an answer: a thread is never held for longer by somebody who does nothing.
* What the parser refuses before the application is asked is answered as JSON, like every other error.

``gunicorn --worker-class nylorun.http.server.Worker``; ``/metrics`` counts one process, so one worker of many threads.
"""

from __future__ import annotations

import json
import socket
import uuid
from typing import Any

from gunicorn import util
from gunicorn.workers.gthread import ThreadWorker

from nylorun.http.protocol import NEWEST

PATIENCE = 30.0
_SERVER_ERROR = 500


class PatientSocket(socket.socket):
    """A socket on which no single operation blocks for longer than ``PATIENCE``."""

    def setblocking(self, flag: bool, /) -> None:
        """Blocking means patient here; not blocking is what it always is."""
        self.settimeout(PATIENCE if flag else 0.0)


class Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's thread worker over patient sockets."""

    def enqueue_req(self, conn: Any) -> None:
        """Serve a connection; a new one becomes patient first."""
        if not isinstance(conn.sock, PatientSocket):
            conn.sock = PatientSocket(fileno=conn.sock.detach())
            conn.sock.setblocking(True)
        super().enqueue_req(conn)


def write_error(sock: socket.socket, status: int, reason: str, message: str) -> None:
    """Answer what the parser refused: the same body and headers as every other error of this interface."""
    code, text = ("internal_error", "The server failed to answer. Try again.")
    if status < _SERVER_ERROR:
        code, text = "request_rejected", f"The request is malformed: {reason}."
    body = json.dumps({"status": "rejected", "code": code, "message": text}, separators=(",", ":"))
    head = (
        f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"X-Request-Id: {uuid.uuid4()}\r\nNylorun-Protocol: {NEWEST}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    util.write_nonblock(sock, (head + body).encode("latin-1"))


util.write_error = write_error
