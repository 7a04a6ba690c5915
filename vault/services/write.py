"""Writing a Secret: a new one, or another value under the same name.

* :func:`prepare` reads the row and seals, outside any transaction; :func:`store` writes in the caller's, under the
  Vault's lock, only while the row is still what was read, else :class:`Moved`: the caller prepares again.
* Rotation keeps id and type, and replaces binding, header names and the sealed value under a new data key.
* Locks: Vault row. The caller holds the Environment row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from nylorun.db.tx import Tx
from nylorun.kernel.errors import NotFound
from nylorun.kernel.sealing import Sealed
from vault import keys
from vault.bindings import clash_with
from vault.errors import CredentialConflict
from vault.models import Secret, Vault
from vault.services import audit
from vault.services.audit import Trail
from vault.services.vaults import hold_vault
from vault.values import Value


class Moved(Exception):
    """The row was written or removed since it was read: prepare again."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sealed value that waits for its commit, and its row. ``nonce`` is of the value that it replaces."""

    place: keys.Place
    header_names: list[str] | None
    sealed: Sealed
    nonce: bytes | None


def prepare(environment_uid: UUID, name: str, binding: Mapping[str, Any], value: Value) -> Prepared:
    """Seal ``value`` for the row of this name, or a new one; raises :class:`CredentialConflict` for another type."""
    vault = Vault.objects.filter(environment_uid=environment_uid).first()
    if vault is None:
        raise NotFound
    row = Secret.objects.filter(vault=vault, name=name).first()
    if row is not None:
        _same_type(row, binding)
    secret_id = uuid4() if row is None else row.id
    place = keys.Place(vault.id, secret_id, name, binding["type"], dict(binding))
    return Prepared(place, value.header_names, keys.seal(place, value), None if row is None else bytes(row.nonce))


def store(tx: Tx, prepared: Prepared, environment_uid: UUID, *, trail: Trail, now: datetime) -> tuple[Secret, bool]:
    """Write what was prepared; the row, and whether it is new. Raises :class:`CredentialConflict`, :class:`Moved`."""
    place = prepared.place
    vault = hold_vault(tx, environment_uid)
    if vault is None or vault.id != place.vault_id:
        raise Moved
    others = list(Secret.objects.filter(vault=vault).defer("wrapped_dek", "ciphertext"))
    row = next((other for other in others if other.name == place.name), None)
    _still_as_read(row, prepared)
    wanted = row or Secret(id=place.secret_id, vault=vault, name=place.name, type=place.type, created_at=now)
    wanted.binding, wanted.header_names = dict(place.binding), prepared.header_names
    _no_clash(wanted, others)
    wanted.sealed = prepared.sealed
    if row is None:
        wanted.save(force_insert=True)
        audit.note(trail, "create", "created", [wanted], at=now)
        return wanted, True
    wanted.rotated_at = now
    wanted.save(update_fields=["binding", "header_names", "kek_id", "nonce", "wrapped_dek", "ciphertext", "rotated_at"])
    audit.note(trail, "rotate", "rotated", [wanted], at=now)
    return wanted, False


def remove(tx: Tx, environment_uid: UUID, name: str, *, trail: Trail, now: datetime) -> bool:
    """Remove the Secret of this name; false when there is none. Same lock as a write."""
    vault = hold_vault(tx, environment_uid)
    row = None if vault is None else Secret.objects.filter(vault=vault, name=name).first()
    if row is None:
        return False
    audit.note(trail, "delete", "deleted", [row], at=now)
    row.delete()
    return True


def _still_as_read(row: Secret | None, prepared: Prepared) -> None:
    if row is None:
        if prepared.nonce is not None:
            raise Moved
        return
    if row.id != prepared.place.secret_id or bytes(row.nonce) != prepared.nonce or row.type != prepared.place.type:
        raise Moved


def _same_type(row: Secret, binding: Mapping[str, Any]) -> None:
    if row.type != binding["type"]:
        raise CredentialConflict(
            f"{row.name} is a Secret of type {row.type}: delete it first, or use another name.", row.name
        )


def _no_clash(wanted: Secret, others: list[Secret]) -> None:
    other = clash_with(wanted.bound, (row.bound for row in others))
    if other is not None:
        raise CredentialConflict(
            f"{wanted.name} would set the same header on the same host as {other}: "
            "bind it elsewhere, or delete the other one.",
            other,
        )
