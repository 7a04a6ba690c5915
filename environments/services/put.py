"""Get-or-create: makes an Environment and its Vault in one commit, or finds it; a found one keeps what it runs.

* A create that lost the race for an id starts over and is answered as found.
* A ``PUT`` on an existing row never starts, restarts or changes a pod, and works on a lost or failed one.
* Locks: Environment rows (its own, and the one it starts from), then those of ``create``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError
from django.db.models import ProtectedError

from environments.commands import UNSET, PutEnvironment
from environments.errors import EnvironmentImmutable, being_deleted
from environments.models import Environment
from environments.services.available import PodsAvailable
from environments.services.create import check_guard, create_environment, resolve_recipe
from environments.services.present import etag, present
from environments.services.rows import Facts, facts_of, hold_row, later
from manifests.queries import version_for
from manifests.recipe import inline_overlay
from nylorun.db.locks import StartOver
from nylorun.db.tx import Tx, transact
from nylorun.http.caller import Caller
from nylorun.http.etag import check_if_match
from nylorun.kernel.canonical import same
from nylorun.kernel.errors import RequestConflict, RequestRejected


@dataclass(frozen=True, slots=True)
class Put:
    """What a ``PUT`` answers."""

    view: dict[str, Any]
    etag: str
    created: bool


def put_environment(command: PutEnvironment, *, caller: Caller, pods: PodsAvailable, tenant: str) -> Put:
    """Make the Environment or find it; one transaction, durable when it returns."""
    if command.manifest is not None and command.inline:
        fields = ", ".join(command.inline)
        raise RequestRejected(f"Send manifest or inline fields, not both: leave out manifest or {fields}.")
    if command.inline.get("kind") == "pod":
        pods.require(command.id)

    def work(tx: Tx) -> Put:
        row, source = _hold(tx, command)
        if row is None:
            check_if_match(command.if_match, None)
            made, facts = create_environment(tx, command, caller=caller, pods=pods, tenant=tenant, source=source)
            return Put(present(made, facts), etag(made), created=True)
        if not row.live:
            raise being_deleted(row.id)
        return _found(tx, row, command, caller)

    try:
        return transact(work)
    except (IntegrityError, ProtectedError) as error:
        # The Manifest version was deleted between its look-up and the commit: it is as if it had been missing.
        version_for(command.manifest or "")
        raise StartOver from error


def _hold(tx: Tx, command: PutEnvironment) -> tuple[Environment | None, Environment | None]:
    """The row of this id and the one it starts from, by ascending id: being the source is a use of it."""
    named = {command.id} | ({command.source.environment} if command.source else set())
    held = {id: hold_row(tx, id) for id in sorted(named)}
    return held[command.id], held[command.source.environment] if command.source else None


# ------------------------------------------------------------------------------------------------------------- found


def _found(tx: Tx, row: Environment, command: PutEnvironment, caller: Caller) -> Put:
    if command.source is not None:
        raise RequestConflict(f"Environment {row.id} exists: from applies only to a new one.")
    facts = facts_of(row, tx)
    if command.manifest is not None:
        _same_manifest(row, command.manifest)
    elif command.inline:
        _same_fields(row, command, facts)
    if command.owner is not UNSET:
        check_guard(row.owner_user_id, command.owner, caller)
    if command.if_match is not None:
        check_if_match(command.if_match, etag(row))
    row.write(**_changes(row, command, facts.now))
    return Put(present(row, facts), etag(row), created=False)


def _changes(row: Environment, command: PutEnvironment, now: datetime) -> dict[str, Any]:
    """What a ``PUT`` on an existing row writes: its use always, labels and guard when they were sent and differ."""
    patch: dict[str, Any] = {"last_used_at": later(row.last_used_at, now)}
    if command.labels is not None and not same(dict(command.labels), row.labels):
        patch["labels"] = dict(command.labels)
    if command.owner is not UNSET and command.owner != row.owner_user_id:
        patch["owner_user_id"] = command.owner
    if len(patch) > 1:
        patch["updated_at"] = later(row.updated_at, now)
    return patch


def _same_manifest(row: Environment, reference: str) -> None:
    name, _, version = reference.partition("@")
    same_version = not version or int(version) == row.manifest_version_number
    if row.manifest_name != name or not same_version:
        raise _immutable(row, ["manifest"])


def _same_fields(row: Environment, command: PutEnvironment, facts: Facts) -> None:
    inline = dict(command.inline)
    if inline.get("kind", row.kind) != row.kind:
        raise _immutable(row, ["kind"])
    if "storage" in inline and inline["storage"] != row.recipe.get("storage"):
        raise _immutable(row, ["storage"])
    recipe = resolve_recipe(row.kind, inline_overlay(row.recipe, inline), facts)
    differing = sorted(
        key for key in recipe.keys() | row.recipe.keys() if not same(recipe.get(key), row.recipe.get(key))
    )
    if differing:
        raise _immutable(row, differing)


def _immutable(row: Environment, fields: list[str]) -> EnvironmentImmutable:
    manifest = None if row.manifest_name is None else f"{row.manifest_name}@{row.manifest_version_number}"
    return EnvironmentImmutable(row.id, fields, manifest)
