"""Limits of the Tenant that are no part of the sandbox settings."""

from __future__ import annotations

from nylorun.tenant.store import setting

FILE_BYTES = 1 << 30


def file_bytes() -> int:
    """Bytes that one uploaded file may have: setting ``artifacts.limits``, else 1 GiB. Read at each use."""
    limits = setting("artifacts.limits") or {}
    return int(limits.get("fileBytes", FILE_BYTES))
