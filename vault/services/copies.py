"""Copies of Secrets for a fork: planned, sealed for the new Vault, inserted with it.

* :func:`plan` reads names and bindings; :func:`seal_copies` opens and seals outside any transaction, and the copies
  live only in memory; :func:`insert_copies` is part of the commit that makes the new Environment.
* With Slots, a Secret is copied only when type and binding are its Slot's. Type ``model`` is never copied.
* A source Secret that was removed or written since it was sealed is dropped at the insert, never copied old; a rotation
  of the keyring changes nothing of that.
* Locks: the source's Vault row. The caller holds both Environment rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from nylorun.db.tx import Tx, require_no_tx
from nylorun.kernel.canonical import same
from nylorun.kernel.sealing import Sealed
from vault import keys
from vault.bindings import binding_of
from vault.models import Secret
from vault.services import audit
from vault.services.audit import Trail
from vault.services.listing import SEALED_COLUMNS
from vault.services.vaults import hold_vault

Slots = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Copied:
    """Names, sorted: what the new Vault holds, and what it does not."""

    copied: list[str]
    dropped: list[str]


@dataclass(frozen=True, slots=True)
class _Copy:
    """One Secret of the new Vault, and the row it was read from. ``nonce`` is of the value that was read."""

    source_id: UUID
    nonce: bytes
    place: keys.Place
    header_names: list[str] | None
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class Copies:
    """Sealed copies on their way into the Vault ``vault_id``, and the names that were left out."""

    source_uid: UUID
    vault_id: UUID
    dropped: tuple[str, ...] = ()
    _copies: Sequence[_Copy] = field(default=(), repr=False)


def plan(environment_uid: UUID, slots: Slots | None, *, none: bool = False) -> Copied:
    """What a fork onto a Recipe with these Slots would copy and drop; ``none`` copies nothing."""
    rows = list(_copyable(environment_uid).defer(*SEALED_COLUMNS))
    copied = [] if none else sorted(row.name for row in rows if _fits(row, slots))
    return Copied(copied, sorted(row.name for row in rows if row.name not in copied))


def seal_copies(environment_uid: UUID, vault_id: UUID, slots: Slots | None) -> Copies:
    """Open and seal again what fits; raises :class:`~nylorun.kernel.sealing.Unreadable`."""
    require_no_tx()
    rows = list(_copyable(environment_uid))
    copies = [_sealed_for(row, vault_id) for row in rows if _fits(row, slots)]
    dropped = tuple(sorted(row.name for row in rows if not _fits(row, slots)))
    return Copies(environment_uid, vault_id, dropped, copies)


def insert_copies(tx: Tx, copies: Copies, *, source: Trail, target: Trail, now: datetime) -> Copied:
    """Insert what is still as it was read; the caller has made the Vault. One audit row on either Vault for each."""
    if copies._copies:
        hold_vault(tx, copies.source_uid)
    sources = {row.id: row for row in _copyable(copies.source_uid).defer("wrapped_dek", "ciphertext")}
    read, made, dropped = [], [], list(copies.dropped)
    for copy in copies._copies:
        row = sources.get(copy.source_id)
        if row is None or bytes(row.nonce) != copy.nonce:
            dropped.append(copy.place.name)
            continue
        read.append(row)
        made.append(_row(copy, now))
    Secret.objects.bulk_create(made)
    audit.note(source, "copy", "copied", read, at=now)
    audit.note(target, "copy", "copied", made, at=now)
    return Copied(sorted(row.name for row in made), sorted(dropped))


def _copyable(environment_uid: UUID) -> Any:
    return Secret.objects.of(environment_uid).exclude(type="model")


def _fits(row: Secret, slots: Slots | None) -> bool:
    if slots is None:
        return True
    slot = slots.get(row.name)
    return slot is not None and slot["type"] == row.type and same(binding_of(slot), row.binding)


def _sealed_for(row: Secret, vault_id: UUID) -> _Copy:
    place = keys.Place(vault_id, uuid4(), row.name, row.type, row.binding)
    sealed = keys.seal(place, keys.open_value(row.place, row.sealed))
    return _Copy(row.id, bytes(row.nonce), place, row.header_names, sealed)


def _row(copy: _Copy, now: datetime) -> Secret:
    place = copy.place
    row = Secret(
        id=place.secret_id, vault_id=place.vault_id, name=place.name, type=place.type, binding=dict(place.binding),
        header_names=copy.header_names, created_at=now,
    )  # fmt: skip
    row.sealed = copy.sealed
    return row
