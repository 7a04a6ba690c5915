"""Fork: a new Environment beside the source, on another Manifest version, with a copy of its disk. One Operation.

* :func:`plan` says what a fork would do and writes nothing; :func:`request` commits the Operation with that plan, and
  the fork is made from the version the plan resolved, whatever is saved meanwhile.
* With disk ``latest`` the source is copied first; the number goes into the Operation, so a later attempt takes no
  lease and copies nothing again.
* Copies of Secrets are sealed for the new Vault before :func:`create`'s commit and outside it; they live in memory.
* :func:`create` is one commit: row, Vault, copies, both events, the new disk's ``seed`` and this Operation's end. A
  create that is refused leaves only an extra Disk version.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from environments.commands import UNSET, DiskSource, ForkEnvironment, PutEnvironment
from environments.errors import DiskVersionNotFound
from environments.models import Environment, Operation
from environments.services import dispatch, fork_secrets, leases, operations, snapshots, versions
from environments.services.available import PodsAvailable
from environments.services.create import Fork, check_guard, create_environment, resolve_recipe
from environments.services.operations import Attempt
from environments.services.present import present
from environments.services.read import live_row
from environments.services.rows import Facts, facts_of, hold_live, hold_row, later
from environments.services.versions import Copied
from manifests.models import ManifestVersion
from manifests.queries import version_for
from manifests.recipe import changes
from manifests.services import content
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact
from nylorun.http.caller import Caller
from nylorun.kernel.canonical import canonical_hash
from nylorun.kernel.errors import NotFound, RequestConflict, RequestRejected
from nylorun.record import events
from nylorun.tenant.store import hold_artifact_quota
from vault.services.copies import Copied as CopiedSecrets


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fork does. ``disk`` is ``None`` where a side has no disk, or an empty one was asked for."""

    source: str
    id: str
    kind: str
    manifest: dict[str, Any]
    disk: int | str | None
    setup: bool
    secrets: dict[str, list[str]]
    changes: list[dict[str, Any]]
    sessions: int


class FenceMoved(Exception):
    """Another attempt has this Operation now, or it was cancelled: the caller stops and writes nothing."""


def plan(command: ForkEnvironment, *, caller: Caller) -> Plan:
    """The plan of a fork, read without a lock; raises what would refuse it, an id that is taken included."""
    source = live_row(command.source)
    planned = _plan(command, source, facts_of(source), caller)
    _require_free(command.id)
    return planned


def request(command: ForkEnvironment, *, caller: Caller, pods: PodsAvailable) -> str:
    """Ask for the fork; the Operation's id."""

    def work(tx: Tx) -> str:
        source, _ = _hold_both(tx, command.source, command.id)
        holder = leases.hold_holder(tx, source)
        facts = facts_of(source, tx)
        planned = _plan(command, source, facts, caller)
        _require_free(command.id)
        if planned.kind == "pod":
            pods.require(command.id)
        input = _input(command, planned, caller)
        if planned.disk != "latest":
            source.write(last_used_at=later(source.last_used_at, facts.now))
            data = _named(source, planned.disk)
            return dispatch.queue(tx, source, "fork", facts.now, actor=caller.actor, input=input, data=data).id
        snapshots.refuse(source, facts, pods)
        operation = snapshots.begin(tx, source, facts, holder, actor=caller.actor, kind="fork", input=input)
        snapshots.use(tx, source, facts)
        return operation.id

    return transact(work)


def _require_free(id: str) -> None:
    if Environment.objects.named(id).exists():
        raise RequestConflict(f"Environment {id} exists: fork to an id that is free.")


def _input(command: ForkEnvironment, planned: Plan, caller: Caller) -> dict[str, Any]:
    return {
        "plan": asdict(planned),
        "disk": planned.disk,
        "labels": None if command.labels is None else dict(command.labels),
        "owner": {} if command.owner is UNSET else {"set": command.owner},
        "secrets": command.secrets,
        "requestId": command.request_id,
        "caller": {"kind": caller.kind, "id": caller.id, "subject": caller.subject, "scopes": sorted(caller.scopes)},
    }


def _named(source: Environment, disk: int | str | None) -> dict[str, Any]:
    """The version that this Operation keeps from being removed until the new disk names it."""
    artifact = versions.disk_by_uid(source.uid)
    return {"artifactId": artifact.id, "version": disk} if isinstance(disk, int) and artifact is not None else {}


# --------------------------------------------------------------------------------------------------------------- plan


def _plan(command: ForkEnvironment, source: Environment, facts: Facts, caller: Caller) -> Plan:
    if command.id == source.id:
        raise RequestRejected("Fork to another id: an Environment cannot be forked onto itself.")
    if not caller.reaches(command.id) or not caller.owns(source.owner_user_id):
        raise NotFound
    if command.owner is not UNSET:
        check_guard(None, command.owner, caller)
    version = _version(command, source)
    body = dict(version.body)
    kind = str(body.pop("kind", "virtual"))
    recipe = resolve_recipe(kind, body, facts)
    disk = _disk(command, source, kind)
    return Plan(
        source=source.id,
        id=command.id,
        kind=kind,
        manifest={"name": version.manifest_id, "version": version.number},
        disk=disk,
        setup=_needs_setup(source, kind, recipe, disk),
        secrets=fork_secrets.plan(source, recipe, none=command.secrets == "none"),
        changes=changes(source.recipe, recipe),
        sessions=0,
    )


def _version(command: ForkEnvironment, source: Environment) -> ManifestVersion:
    reference = command.manifest or source.manifest_name
    if reference is None:
        raise RequestRejected(f"Environment {source.id} was made inline: name a manifest to fork it onto.")
    return version_for(reference)


def _disk(command: ForkEnvironment, source: Environment, kind: str) -> int | str | None:
    if "none" in (kind, source.kind) or command.disk == "empty":
        return None
    if command.disk == "latest":
        return "latest"
    artifact = versions.disk_by_uid(source.uid)
    if artifact is None or versions.find(artifact, command.disk) is None:
        raise DiskVersionNotFound(source.id, command.disk)
    return command.disk


def _needs_setup(source: Environment, kind: str, recipe: dict[str, Any], disk: int | str | None) -> bool:
    asks = bool(recipe.get("setup") or recipe.get("files"))
    return kind == "pod" and disk is not None and asks and canonical_hash(recipe) != source.manifest_hash


# ------------------------------------------------------------------------------------------------------------- running


def keep_copy(attempt: Attempt, tree: Copied) -> int | None:
    """The source was copied: make its version, note the number, end the lease; ``None`` when the fence moved."""
    numbers: list[int] = []

    def work(tx: Tx, row: Environment, operation: Operation) -> None:
        hold_artifact_quota(tx)
        artifact = versions.hold_disk(tx, row.uid)
        now = tx.now()
        kept, released = versions.keep(row, artifact, tree, cause="fork", operation=operation, now=now)
        content.release(tx, released)
        operation.data = {**operation.data, "artifactId": kept.artifact_id, "version": kept.number}
        operation.save(update_fields=["data"])
        leases.release(row, operation)
        snapshots.note_use(row, now, asked=True)
        numbers.append(kept.number)

    return numbers[-1] if operations.write_back(attempt, work) else None


def create(attempt: Attempt, number: int | None, *, pods: PodsAvailable, tenant: str) -> None:
    """Make the fork; raises what refuses it, and :class:`FenceMoved`."""
    sealed = fork_secrets.seal(attempt)
    if sealed is None:
        raise FenceMoved
    planned = dict(attempt.input["plan"])
    caller = _caller(attempt)
    owner = attempt.input["owner"]
    command = PutEnvironment(
        planned["id"],
        manifest=f"{planned['manifest']['name']}@{planned['manifest']['version']}",
        labels=attempt.input["labels"],
        owner=owner.get("set", UNSET),
        source=None if number is None else DiskSource(planned["source"], number),
    )

    def work(tx: Tx) -> None:
        source, target = _hold_both(tx, attempt.environment_id, command.id)
        if target is not None:
            raise RequestConflict(f"Environment {command.id} exists: fork to an id that is free.")
        held: list[Operation] = []
        kept: list[CopiedSecrets] = []

        def fill(tx: Tx, row: Environment, now: datetime) -> None:
            kept.append(fork_secrets.insert(tx, row, source, sealed, attempt, now=now))

        fork = Fork(
            planned["source"], number, planned["setup"], lambda tx: held.append(_held(tx, source, attempt)), fill
        )
        row, facts = create_environment(tx, command, caller=caller, pods=pods, tenant=tenant, source=source, fork=fork)
        planned["disk"] = number
        planned["secrets"] = fork_secrets.outcome(attempt.input["plan"]["secrets"], row, kept[0])
        payload = {
            "to": row.id,
            "disk": number,
            "manifest": planned["manifest"],
            "secrets": len(planned["secrets"]["copied"]),
        }
        events.append(tx, source.id, source.noun, "forked", payload)
        result = {"environment": present(row, facts), "plan": planned}
        operations.succeed(source, held[0], result, facts.now, status=201)

    transact(work)


def _held(tx: Tx, source: Environment, attempt: Attempt) -> Operation:
    """The Operation, locked, while it is still this attempt's."""
    operation = tx.hold(Rank.OPERATION, Operation.objects.filter(pk=attempt.operation_id), attempt.operation_id)
    if operation is None or operation.state != "running" or operation.attempt != attempt.attempt:
        raise FenceMoved
    if operation.cancel_requested:
        raise FenceMoved
    return operation


def _hold_both(tx: Tx, source_id: str, target_id: str) -> tuple[Environment, Environment | None]:
    """Source and target rows, by ascending id; a source that is not live is 404."""
    rows = {id: hold_live(tx, id) if id == source_id else hold_row(tx, id) for id in sorted({source_id, target_id})}
    source = rows[source_id]
    if source is None:
        raise NotFound
    return source, rows.get(target_id)


def _caller(attempt: Attempt) -> Caller:
    kept = attempt.input["caller"]
    return Caller(kept["kind"], kept["id"], kept["subject"], frozenset(kept["scopes"]))
