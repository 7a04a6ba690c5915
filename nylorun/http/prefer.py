"""``Prefer`` (RFC 7240) and the idempotency key: what a request asks of its answer.

An unreadable ``Prefer`` is ignored; a malformed ``Idempotency-Key`` is a fault of the request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nylorun.kernel.errors import InvalidRequest

WAIT_MAX = 60
_KEY = re.compile(r"[\x21-\x7e]{1,256}")
_WAIT = re.compile(r'wait\s*=\s*"?([0-9]{1,9})"?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Prefer:
    """``wait`` seconds (0..60) to wait for the end, ``None`` when nothing was asked; ``applied`` is what to echo."""

    wait: int | None = None
    applied: str | None = None


def prefer_of(header: str | None) -> Prefer:
    """What ``Prefer`` asks; ``respond-async`` wins over ``wait``, larger waits count as ``WAIT_MAX``."""
    preferences = [part.partition(";")[0].strip() for part in (header or "").split(",")]
    if any(preference.lower() == "respond-async" for preference in preferences):
        return Prefer(0, "respond-async")
    for preference in preferences:
        match = _WAIT.fullmatch(preference)
        if match is not None:
            seconds = min(int(match[1]), WAIT_MAX)
            return Prefer(seconds, f"wait={seconds}")
    return Prefer()


def idempotency_key(header: str | None, member: str | None) -> str | None:
    """The key of a request: header and body member are one thing; both present and different is refused."""
    if header is not None and _KEY.fullmatch(header) is None:
        raise InvalidRequest([{"path": "Idempotency-Key:", "message": "must be 1 to 256 characters of ! to ~"}])
    if header is not None and member is not None and header != member:
        raise InvalidRequest([{"path": "/idempotencyKey", "message": "must equal the header Idempotency-Key"}])
    return header if header is not None else member
