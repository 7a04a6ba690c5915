"""What the gate itself says to a sandbox. Nothing it says depends on a Secret or names an address."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from vault.gate.errors import Failed, Refuse

ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


def answer(ended: Refuse | Failed) -> bytes:
    """A whole response, after which the connection closes."""
    members = {"status": "rejected", "code": "request_rejected", "message": ended.message}
    if isinstance(ended, Failed):
        members["code"] = "service_unavailable"
    elif ended.reason is not None:
        members["reason"] = ended.reason
    body = json.dumps(members, separators=(",", ":")).encode()
    head = (
        f"HTTP/1.1 {ended.status} {HTTPStatus(ended.status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
