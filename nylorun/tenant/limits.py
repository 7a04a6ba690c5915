"""Limits of the Tenant that are no part of the sandbox settings: setting ``artifacts.limits``, read at each use."""

from __future__ import annotations

from nylorun.tenant.store import ARTIFACTS_LIMITS, setting

FILE_BYTES = 1 << 30
TOTAL_BYTES = 100 << 30


def file_bytes() -> int:
    """Bytes that one uploaded file may have; 1 GiB unless set."""
    return _limit("fileBytes", FILE_BYTES)


def total_bytes() -> int:
    """Bytes that all stored content may have, each content counted once; 100 GiB unless set."""
    return _limit("totalBytes", TOTAL_BYTES)


def _limit(name: str, default: int) -> int:
    return int((setting(ARTIFACTS_LIMITS) or {}).get(name, default))
