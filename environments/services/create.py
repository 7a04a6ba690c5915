"""The one way an Environment is made, by ``PUT`` and by a fork: row, Vault, event and disk seed in one commit.

* Every create is serialised by the lock ``environments.create``, which also holds the number of live Environments; one
  that lost the race for an id starts over.
* A create that starts from a Disk version locks the version's artifact and looks at it again: whoever writes a disk
  seed has seen its version under that lock.
* Locks: ``environments.create``, the fork's own, artifact row, the Vault row of a fork's source, stream heads, outbox
  rows. The caller holds the Environment rows: the new id's and the source's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from environments import lifecycle
from environments.commands import UNSET, PutEnvironment
from environments.errors import BUSY_RETRY, DiskVersionNotFound, EnvironmentOwnerMismatch, TenantResetting
from environments.models import Environment
from environments.services import dispatch, versions
from environments.services.available import PodsAvailable
from environments.services.rows import Facts, ask_reconcile, facts_of, later
from manifests.models import ManifestVersion
from manifests.queries import check_files, version_for
from manifests.recipe import RecipeProblems, resolve
from nylorun.db.locks import StartOver
from nylorun.db.tx import Tx
from nylorun.http.caller import Caller
from nylorun.kernel.canonical import canonical_hash
from nylorun.kernel.errors import CountLimitExceeded, NotFound, RequestRejected
from nylorun.kernel.ids import new_uid
from nylorun.record import events
from nylorun.tenant.store import change_environment_count, hold_environment_count
from vault.services.vaults import create_vault


@dataclass(frozen=True, slots=True)
class Fork:
    """What a create by a fork knows beside its command: ``disk`` is the number it starts from, if any."""

    source: str
    disk: int | None
    setup: bool
    hold: Callable[[Tx], None]
    """Takes the fork's own locks and raises when its fence moved."""
    fill: Callable[[Tx, Environment, datetime], None]
    """Makes the new row's Vault, with the Secrets that were copied for it."""


def create_environment(
    tx: Tx,
    command: PutEnvironment,
    *,
    caller: Caller,
    pods: PodsAvailable,
    tenant: str,
    source: Environment | None,
    fork: Fork | None = None,
) -> tuple[Environment, Facts]:
    """Make the row and everything that belongs to it; ``source`` is the locked row that ``command.source`` names."""
    if command.owner is not UNSET:
        check_guard(None, command.owner, caller)
    version = None if command.manifest is None else version_for(command.manifest)
    body = dict(command.inline) if version is None else dict(version.body)
    kind = str(body.pop("kind", "virtual"))
    if kind == "pod":
        pods.require(command.id)
    if command.source is not None:
        _check_source(source, kind, caller)
    live = hold_environment_count(tx)
    if Environment.objects.named(command.id).exists():
        raise StartOver
    if fork is not None:
        fork.hold(tx)
    seed = _start(tx, command, source, fork)
    facts = facts_of(None, tx)
    if facts.resetting:
        raise TenantResetting("The Tenant is being reset. Try again.", retry_after=BUSY_RETRY)
    recipe = resolve_recipe(kind, body, facts)
    _check_files(recipe)
    _require_room(live, facts.settings.environments)
    row = _row(command, kind, recipe, version, facts, pods, tenant)
    row.disk_seed = seed
    row.setup_done_gen = row.volume_gen if seed is not None and not seed.get("setup") else None
    row.forked_from = None if fork is None else {"environment": fork.source, "disk": fork.disk}
    _insert(tx, row, command, source, facts.now, fork)
    return row, facts


def _check_files(recipe: dict[str, Any]) -> None:
    problems = [str(problem) for problem in check_files(recipe)]
    if problems:
        raise RequestRejected(" ".join(problems), problems=problems)


def _require_room(live: int, most: int) -> None:
    if live >= most:
        raise CountLimitExceeded(
            f"This installation holds its {most} Environments: delete one, "
            "or raise limits.environments with PUT /v1/tenant/sandbox.",
            details={"limit": "environments", "max": most},
        )


def check_guard(current: str | None, wanted: str | None, caller: Caller) -> None:
    """Refuse a change of the owner guard: a person may only set it to themself, on a row not guarded for another."""
    if caller.subject is None:
        return
    if current not in (None, caller.subject):
        raise NotFound
    if wanted != caller.subject:
        raise EnvironmentOwnerMismatch("The owner guard can be set to the person this request acts for, and only so.")


def resolve_recipe(kind: str, body: dict[str, Any], facts: Facts) -> dict[str, Any]:
    """The Recipe of a body under the settings of now; every problem in one 400."""
    try:
        return resolve(kind, body, facts.settings)
    except RecipeProblems as error:
        raise RequestRejected(" ".join(error.problems), problems=error.problems) from error


def _check_source(source: Environment | None, kind: str, caller: Caller) -> None:
    if source is None or not source.live or not caller.reaches(source.id) or not caller.owns(source.owner_user_id):
        raise NotFound
    if "none" in (kind, source.kind):
        raise RequestRejected("from needs a disk on both sides: kind none has none.")


def _start(tx: Tx, command: PutEnvironment, source: Environment | None, fork: Fork | None) -> dict[str, Any] | None:
    """The disk seed, with its version seen under the artifact's lock."""
    asked = command.source
    if asked is None or source is None:
        return None
    artifact = versions.hold_disk(tx, source.uid)
    if artifact is None:
        raise DiskVersionNotFound(asked.environment, asked.version)
    number = artifact.latest_version if asked.version == "latest" else asked.version
    if number is None or versions.find(artifact, number) is None:
        raise DiskVersionNotFound(asked.environment, asked.version)
    seed: dict[str, Any] = {"artifactId": artifact.id, "version": number}
    return {**seed, "setup": True} if fork is not None and fork.setup else seed


def _row(
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
    after = lifecycle.delete_after(recipe)
    return Environment(
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
        delete_check_at=None if after is None else now + after,
        **pod,
    )


def _insert(
    tx: Tx, row: Environment, command: PutEnvironment, source: Environment | None, now: datetime, fork: Fork | None
) -> None:
    row.save(force_insert=True)
    change_environment_count(+1)
    if fork is None:
        create_vault(row.uid, now=now)
    else:
        fork.fill(tx, row, now)
    events.append(tx, row.id, row.noun, "created", _payload(row, command))
    if source is not None:
        source.write(last_used_at=later(source.last_used_at, now))
    if row.disk_seed is not None:
        named = {name: row.disk_seed[name] for name in ("artifactId", "version")}
        dispatch.queue(tx, row, "seed", now, data=named, hand_out=row.kind == "virtual")
    if row.kind == "pod":
        ask_reconcile(tx, row.id)


def _payload(row: Environment, command: PutEnvironment) -> dict[str, Any]:
    payload: dict[str, Any] = {"kind": row.kind, "labels": row.labels}
    if row.manifest_name is not None:
        payload["manifest"] = {"name": row.manifest_name, "version": row.manifest_version_number}
    if row.forked_from is not None:
        payload["forkedFrom"] = row.forked_from
    elif command.source is not None and row.disk_seed is not None:
        payload["from"] = {"environment": command.source.environment, "version": row.disk_seed["version"]}
    return payload
