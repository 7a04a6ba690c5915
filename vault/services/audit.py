"""The vault's audit: one row for each change and each use, written in the transaction of what it tells of.

* A row has the columns of :class:`~vault.models.VaultAudit` and nothing else: no value, header or binding has a place
  in it. ``target`` is a host.
* Rows are never changed: the database refuses it. They survive Vault, Environment and every reset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from nylorun.kernel.ids import new_uid
from vault.models import Secret, VaultAudit

SYSTEM = "system"

Action = Literal["create", "rotate", "delete", "use", "copy"]
Outcome = Literal["created", "rotated", "deleted", "copied", "approved", "refused"]


@dataclass(frozen=True, slots=True)
class Trail:
    """Who acts, and for what. ``actor``: the Subject, else the application's id, ``operator:<user>`` or ``system``."""

    actor: str
    environment_id: str | None = None
    session_id: str | None = None
    request_id: str | None = None


def note(
    trail: Trail, action: Action, outcome: Outcome, rows: Iterable[Secret], *, at: datetime, target: str | None = None
) -> None:
    """One row for each Secret, in the caller's transaction."""
    VaultAudit.objects.bulk_create([_row(trail, action, outcome, row, at, target) for row in rows])


def _row(trail: Trail, action: str, outcome: str, row: Secret, at: datetime, target: str | None) -> VaultAudit:
    vault_id: UUID = row.vault_id
    return VaultAudit(
        id=new_uid(),
        at=at,
        actor=trail.actor,
        action=action,
        vault_id=vault_id,
        credential_id=row.id,
        name=row.name,
        environment_id=trail.environment_id,
        session_id=trail.session_id,
        target=target,
        request_id=trail.request_id,
        outcome=outcome,
    )
