"""Making, locking and removing Vaults, in the transaction of the Environment they belong to."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

from nylorun.db.locks import Rank
from nylorun.db.tx import Tx
from vault.models import Vault


def draw_vault_id() -> UUID:
    """An id for a Vault that is made later: copies are sealed for it before."""
    return uuid4()


def create_vault(environment_uid: UUID, *, now: datetime, vault_id: UUID | None = None) -> UUID:
    """Make the Vault of a row that the caller's transaction makes; a second one for the same row fails."""
    return Vault.objects.create(id=vault_id or uuid4(), environment_uid=environment_uid, created_at=now).id


def hold_vault(tx: Tx, environment_uid: UUID) -> Vault | None:
    """Lock the Vault of an Environment whose row the caller holds."""
    return tx.hold(Rank.VAULT, Vault.objects.filter(environment_uid=environment_uid), str(environment_uid))


def remove_vault(environment_uid: UUID) -> None:
    """Remove a Vault before its row goes: a deleted pod's row stays until its machine is gone, its Secrets do not."""
    Vault.objects.filter(environment_uid=environment_uid).delete()
