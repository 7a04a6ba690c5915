"""Get-or-create: makes an Environment and its Vault in one commit, or finds it; a found one keeps what it runs.

* Every create is serialised by the lock ``environments.create``, which also holds the number of live Environments; a
  create that lost the race for an id starts over and is answered as found.
* A ``PUT`` on an existing row never starts, restarts or changes a pod, and works on a lost or failed one.
* Locks: Environment row, ``environments.create``, stream head, outbox row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError
from django.db.models import ProtectedError

from environments import lifecycle
from environments.commands import UNSET, PutEnvironment
from environments.errors import (
    BUSY_RETRY,
    DiskVersionNotFound,
    EnvironmentImmutable,
    EnvironmentOwnerMismatch,
    TenantResetting,
    being_deleted,
)
from environments.models import Environment
from environments.services.available import PodsAvailable
from environments.services.present import etag, present
from environments.services.rows import Facts, ask_reconcile, facts_of, hold_row, later
from manifests.models import ManifestVersion
from manifests.queries import check_files, version_for
from manifests.recipe import RecipeProblems, inline_overlay, resolve
from nylorun.db.locks import StartOver
from nylorun.db.tx import Tx, transact
from nylorun.http.caller import Caller
from nylorun.http.etag import check_if_match
from nylorun.kernel.canonical import canonical_hash, same
from nylorun.kernel.errors import CountLimitExceeded, NotFound, RequestConflict, RequestRejected
from nylorun.kernel.ids import new_uid
from nylorun.record import events
from nylorun.tenant.store import change_environment_count, hold_environment_count
from vault.services.vaults import create_vault


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
        row = hold_row(tx, command.id)
        if row is None:
            return _create(tx, command, caller, pods, tenant)
        if not row.live:
            raise being_deleted(row.id)
        return _found(tx, row, command, caller)

    try:
        return transact(work)
    except (IntegrityError, ProtectedError) as error:
        # The Manifest version was deleted between its look-up and the commit: it is as if it had been missing.
        version_for(command.manifest or "")
        raise StartOver from error


def check_guard(current: str | None, wanted: str | None, caller: Caller) -> None:
    """Refuse a change of the owner guard: a person may only set it to themself, on a row not guarded for another."""
    if caller.subject is None:
        return
    if current not in (None, caller.subject):
        raise NotFound
    if wanted != caller.subject:
        raise EnvironmentOwnerMismatch("The owner guard can be set to the person this request acts for, and only so.")


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
    recipe = _resolve(row.kind, inline_overlay(row.recipe, inline), facts)
    differing = sorted(
        key for key in recipe.keys() | row.recipe.keys() if not same(recipe.get(key), row.recipe.get(key))
    )
    if differing:
        raise _immutable(row, differing)


def _immutable(row: Environment, fields: list[str]) -> EnvironmentImmutable:
    manifest = None if row.manifest_name is None else f"{row.manifest_name}@{row.manifest_version_number}"
    return EnvironmentImmutable(row.id, fields, manifest)


# ------------------------------------------------------------------------------------------------------------ create


def _create(tx: Tx, command: PutEnvironment, caller: Caller, pods: PodsAvailable, tenant: str) -> Put:
    check_if_match(command.if_match, None)
    if command.owner is not UNSET:
        check_guard(None, command.owner, caller)
    version = None if command.manifest is None else version_for(command.manifest)
    body = dict(command.inline) if version is None else dict(version.body)
    kind = str(body.pop("kind", "virtual"))
    if kind == "pod":
        pods.require(command.id)
    live = hold_environment_count(tx)
    if Environment.objects.named(command.id).exists():
        raise StartOver
    facts = facts_of(None, tx)
    if facts.resetting:
        raise TenantResetting("The Tenant is being reset. Try again.", retry_after=BUSY_RETRY)
    recipe = _resolve(kind, body, facts)
    problems = [str(problem) for problem in check_files(recipe)]
    if problems:
        raise RequestRejected(" ".join(problems), problems=problems)
    if command.source is not None:
        _check_source(command, kind)
    if live >= facts.settings.environments:
        raise CountLimitExceeded(
            f"This installation holds its {facts.settings.environments} Environments: delete one, "
            "or raise limits.environments with PUT /v1/tenant/sandbox.",
            details={"limit": "environments", "max": facts.settings.environments},
        )
    row = _insert(tx, command, kind, recipe, version, facts, pods, tenant)
    return Put(present(row, facts), etag(row), created=True)


def _insert(
    tx: Tx,
    command: PutEnvironment,
    kind: str,
    recipe: dict[str, Any],
    version: ManifestVersion | None,
    facts: Facts,
    pods: PodsAvailable,
    tenant: str,
) -> Environment:
    now = facts.now
    pod: dict[str, Any] = {}
    if kind == "pod":
        pod = lifecycle.create(
            tenant=tenant, environment_id=command.id, driver=pods.driver, now=now, idle=facts.idle(recipe)
        )
    row = Environment(
        id=command.id,
        uid=new_uid(),
        kind=kind,
        labels=dict(command.labels or {}),
        owner_user_id=None if command.owner is UNSET else command.owner,
        recipe=recipe,
        applied=recipe,
        manifest=version,
        manifest_name=None if version is None else version.manifest_id,
        manifest_version_number=None if version is None else version.number,
        manifest_hash=canonical_hash(recipe),
        last_used_at=now,
        created_at=now,
        updated_at=now,
        delete_check_at=_delete_check(recipe, now),
        **pod,
    )
    row.save(force_insert=True)
    change_environment_count(+1)
    create_vault(row.uid, now=now)
    events.append(tx, row.id, row.noun, "created", _created_payload(row))
    if kind == "pod":
        ask_reconcile(tx, row.id)
    return row


def _created_payload(row: Environment) -> dict[str, Any]:
    payload: dict[str, Any] = {"kind": row.kind, "labels": row.labels}
    if row.manifest_name is not None:
        payload["manifest"] = {"name": row.manifest_name, "version": row.manifest_version_number}
    return payload


def _delete_check(recipe: dict[str, Any], now: datetime) -> datetime | None:
    after = lifecycle.delete_after(recipe)
    return None if after is None else now + after


def _check_source(command: PutEnvironment, kind: str) -> None:
    source = command.source
    if source is None:
        return
    row = Environment.objects.live().named(source.environment).first()
    if row is None:
        raise NotFound
    if "none" in (kind, row.kind):
        raise RequestRejected("from needs a disk on both sides: kind none has none.")
    # No Environment has a Disk version until one is snapshotted, which is the work of the snapshot routes.
    raise DiskVersionNotFound(source.environment, source.version)


def _resolve(kind: str, body: dict[str, Any], facts: Facts) -> dict[str, Any]:
    try:
        return resolve(kind, body, facts.settings)
    except RecipeProblems as error:
        raise RequestRejected(" ".join(error.problems), problems=error.problems) from error
