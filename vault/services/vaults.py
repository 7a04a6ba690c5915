"""Making and removing Vaults, in the transaction of the Environment they belong to."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from vault.models import Vault


def create_vault(environment_uid: UUID, *, now: datetime) -> UUID:
    """Make the Vault of a row that the caller's transaction makes; a second one for the same row fails."""
    return Vault.objects.create(environment_uid=environment_uid, created_at=now).id


def remove_vault(environment_uid: UUID) -> None:
    """Remove a Vault before its row goes: a deleted pod's row stays until its machine is gone, its Secrets do not."""
    Vault.objects.filter(environment_uid=environment_uid).delete()


def secret_names(environment_uid: UUID) -> frozenset[str]:
    """Names that hold a value now. No route writes Secrets yet, so there are none."""
    return frozenset()
