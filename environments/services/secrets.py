"""Secrets of an Environment: list, write, remove. The Slots its Recipe declares decide what may be written.

* Without Slots a body brings its whole binding; with Slots only declared names are taken, with exactly the Slot's type
  and binding, or with the value alone.
* A value is sealed outside any transaction, for the row as it was read; when the row changed meanwhile it is sealed
  again, ``ATTEMPTS`` times in all.
* A write and a delete count as use, and repeat their answer for a known idempotency key.
* Locks: idempotency key, Environment row, Vault row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from environments.commands import DeleteSecret, WriteSecret
from environments.models import Environment
from environments.services.read import live_row
from environments.services.rows import facts_of, hold_live, later
from nylorun.access import keyring
from nylorun.db.tx import Tx, transact
from nylorun.http.caller import Caller
from nylorun.http.words import READ, WRITE, Word
from nylorun.kernel.canonical import same
from nylorun.kernel.errors import InvalidRequest, NotFound, ServiceUnavailable
from nylorun.record import replay
from nylorun.record.replay import Key
from vault.bindings import binding_of, name_problem
from vault.bodies import Given, check_value
from vault.errors import SecretNotInManifest
from vault.services import listing, write
from vault.services.audit import Trail
from vault.services.write import Moved

ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Answered:
    """What a write or a delete answers; ``replayed`` when it is the answer of an earlier request."""

    status: int
    body: dict[str, Any]
    replayed: bool = False


def list_secrets(environment_id: str, *, caller: Caller) -> list[dict[str, Any]]:
    """Every Secret without its value, by creation."""
    row = live_row(environment_id)
    _require_owner(row, caller, READ)
    return listing.list_secrets(row.uid)


def put_secret(command: WriteSecret, *, caller: Caller, key: Key | None) -> Answered:
    """Insert the Secret or give it another value; durable when it returns."""
    stored = _stored(key)
    if stored is not None:
        return stored
    for _ in range(ATTEMPTS):
        row = live_row(command.environment_id)
        _require_owner(row, caller, WRITE)
        binding = _binding(row, command.name, command.given)
        prepared = write.prepare(row.uid, command.name, binding, command.given.value)
        try:
            return transact(partial(_put, command=command, read=row, prepared=prepared, caller=caller, key=key))
        except Moved:
            continue
    raise ServiceUnavailable(f"Secret {command.name} is written by others at this moment. Try again.")


def delete_secret(command: DeleteSecret, *, caller: Caller, key: Key | None) -> Answered:
    """Remove the Secret; a missing one is no fault."""

    def work(tx: Tx) -> Answered:
        stored = _claimed(tx, key)
        if stored is not None:
            return stored
        row = hold_live(tx, command.environment_id)
        _require_owner(row, caller, WRITE)
        now = tx.now()
        trail = _trail(row, caller, command.request_id)
        deleted = name_problem(command.name, "") is None and write.remove(
            tx, row.uid, command.name, trail=trail, now=now
        )
        row.write(last_used_at=later(row.last_used_at, now), has_secrets=bool(listing.secret_names(row.uid)))
        return _kept(key, 200, {"name": command.name, "deleted": deleted})

    return transact(work)


def _put(
    tx: Tx, command: WriteSecret, read: Environment, prepared: write.Prepared, caller: Caller, key: Key | None
) -> Answered:
    stored = _claimed(tx, key)
    if stored is not None:
        return stored
    row = hold_live(tx, command.environment_id)
    if row.uid != read.uid or not same(row.recipe, read.recipe):
        raise Moved
    _require_owner(row, caller, WRITE)
    now = tx.now()
    trail = _trail(row, caller, command.request_id)
    secret, created = write.store(tx, prepared, row.uid, trail=trail, now=now)
    row.write(last_used_at=later(row.last_used_at, now), has_secrets=True)
    return _kept(key, 201 if created else 200, listing.info(secret))


def _trail(row: Environment, caller: Caller, request_id: str | None) -> Trail:
    return Trail(caller.actor, environment_id=row.id, request_id=request_id)


def _require_owner(row: Environment, caller: Caller, word: Word) -> None:
    """Pass with the scopes of ``word``; with ``vaults:own`` alone only on a row guarded for this person."""
    if not caller.may(word) and row.owner_user_id != caller.subject:
        raise NotFound


# ------------------------------------------------------------------------------------------------------------- slots


def _binding(row: Environment, name: str, given: Given) -> Mapping[str, Any]:
    """The binding that is written, after every rule that needs no lock."""
    slots: Mapping[str, Any] | None = row.recipe.get("secrets")
    binding = _undeclared(row, given) if slots is None else _declared(row, slots, name, given)
    problem = name_problem(name, binding["type"])
    if problem is not None:
        raise InvalidRequest([{"path": "{name}", "message": problem}])
    check_value(binding, given.value)
    return binding


def _undeclared(row: Environment, given: Given) -> Mapping[str, Any]:
    if given.binding is None:
        message = f"is required: Environment {row.id} declares no Slots"
        raise InvalidRequest([{"path": "/type", "message": message}])
    via = given.binding.get("via")
    if via is not None and via not in facts_of(row).settings.via:
        raise InvalidRequest([{"path": "/via", "message": "is none of the Tenant's limits.via"}])
    return given.binding


def _declared(row: Environment, slots: Mapping[str, Any], name: str, given: Given) -> Mapping[str, Any]:
    slot = slots.get(name)
    if slot is None:
        raise SecretNotInManifest(
            f"{_declarer(row)} declares no Secret {name}: save a version with the Slot, "
            "then fork onto it or create from it.",
            list(slots),
        )
    binding = binding_of(slot)
    if given.binding is not None and not same(given.binding, binding):
        raise SecretNotInManifest(f"{_declarer(row)} binds Secret {name} otherwise: send its value alone.")
    return binding


def _declarer(row: Environment) -> str:
    if row.manifest_name is None:
        return f"Environment {row.id}, made without a Manifest,"
    return f"Manifest {row.manifest_name}@{row.manifest_version_number}"


# ------------------------------------------------------------------------------------------------------------ repeats


def _stored(key: Key | None) -> Answered | None:
    """The answer of an earlier request, before anything is sealed."""
    return None if key is None else _replayed(replay.earlier(key, keyring.current()))


def _claimed(tx: Tx, key: Key | None) -> Answered | None:
    return None if key is None else _replayed(replay.claim(tx, key, keyring.current()))


def _replayed(stored: replay.Stored | None) -> Answered | None:
    return None if stored is None else Answered(stored.status, stored.body, replayed=True)


def _kept(key: Key | None, status: int, body: dict[str, Any]) -> Answered:
    if key is not None:
        replay.keep(key, keyring.current(), status, body)
    return Answered(status, body)
