"""The Tenant's limits on stored content: read whenever they are used, replaced as a whole. Lock: the setting's row.

A limit below what is stored removes nothing: it refuses what would add to it.
"""

from __future__ import annotations

from typing import Any

from nylorun.db.tx import Tx, transact
from nylorun.tenant.limits import file_bytes, total_bytes
from nylorun.tenant.store import ARTIFACTS_LIMITS, artifact_bytes, locked_setting, write_setting


def show_limits() -> dict[str, int]:
    """The limits in force and the bytes they count now."""
    return {"fileBytes": file_bytes(), "totalBytes": total_bytes(), "usedBytes": artifact_bytes()}


def put_limits(document: dict[str, Any], *, actor: str) -> dict[str, int]:
    """Replace the document; what it leaves out has its default again."""

    def work(tx: Tx) -> None:
        locked_setting(tx, ARTIFACTS_LIMITS)
        write_setting(ARTIFACTS_LIMITS, document, now=tx.now(), actor=actor)

    transact(work)
    return show_limits()
