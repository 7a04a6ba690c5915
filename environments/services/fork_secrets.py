"""The Secrets of a fork: what would be carried over, the sealed copies, and what became of them.

* Copies are sealed for the new Vault before the fork's create and outside any transaction; they live in memory only.
* A source Secret that was written or removed meanwhile is dropped by the create, never copied old.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from environments.models import Environment
from environments.services import operations
from environments.services.operations import Attempt
from manifests.queries import version_for
from nylorun.db.tx import Tx
from vault.services import copies
from vault.services.audit import Trail
from vault.services.copies import Copied, Copies
from vault.services.vaults import create_vault, draw_vault_id


def plan(source: Environment, recipe: Mapping[str, Any], *, none: bool) -> dict[str, list[str]]:
    """Names only: what the new Vault gets, what it loses, and which required Slots stay empty."""
    planned = copies.plan(source.uid, recipe.get("secrets"), none=none)
    return {"copied": planned.copied, "dropped": planned.dropped, "missing": _missing(recipe, planned.copied)}


def seal(attempt: Attempt) -> Copies | None:
    """The source's Secrets, sealed for the new Vault, whose id goes into the Operation; ``None``: the fence moved.

    With ``secrets: none`` nothing is opened or sealed.
    """
    vault_id = UUID(attempt.data["vaultId"]) if "vaultId" in attempt.data else draw_vault_id()
    if "vaultId" not in attempt.data and not operations.note(attempt, vaultId=str(vault_id)):
        return None
    if attempt.input["secrets"] == "none":
        return Copies(attempt.uid, vault_id)
    manifest = attempt.input["plan"]["manifest"]
    version = version_for(f"{manifest['name']}@{manifest['version']}")
    return copies.seal_copies(attempt.uid, vault_id, version.body.get("secrets"))


def insert(tx: Tx, row: Environment, source: Environment, sealed: Copies, attempt: Attempt, *, now: datetime) -> Copied:
    """Make the new row's Vault with what is still as it was read. The caller holds both Environment rows."""
    create_vault(row.uid, now=now, vault_id=sealed.vault_id)
    kept = copies.insert_copies(tx, sealed, source=_trail(attempt, source.id), target=_trail(attempt, row.id), now=now)
    if kept.copied:
        row.write(has_secrets=True)
    return kept


def outcome(planned: Mapping[str, list[str]], row: Environment, kept: Copied) -> dict[str, list[str]]:
    """What the fork answers: a planned Secret that is not there now was dropped."""
    dropped = {*planned["dropped"], *planned["copied"], *kept.dropped}.difference(kept.copied)
    return {"copied": kept.copied, "dropped": sorted(dropped), "missing": _missing(row.recipe, kept.copied)}


def _trail(attempt: Attempt, environment_id: str) -> Trail:
    return Trail(attempt.actor, environment_id=environment_id, request_id=attempt.input.get("requestId"))


def _missing(recipe: Mapping[str, Any], copied: Collection[str]) -> list[str]:
    required = {name for name, slot in recipe.get("secrets", {}).items() if slot.get("required")}
    return sorted(required.difference(copied))
