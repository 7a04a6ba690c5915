"""Row to view: the only maker of the shape callers see."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from environments import lifecycle
from environments.models import Environment
from environments.services.rows import Facts
from nylorun.http.etag import etag_of
from nylorun.kernel.clock import iso
from vault.services.listing import secret_names


def present(row: Environment, facts: Facts, held: Collection[str] | None = None) -> dict[str, Any]:
    """The view of one row at the moment of ``facts``; ``held`` are the names of its Secrets, when they are known."""
    view: dict[str, Any] = {"id": row.id, "kind": row.kind, "labels": row.labels, "manifest": row.recipe}
    if row.manifest_name is not None:
        view["manifestName"] = row.manifest_name
        view["manifestVersion"] = row.manifest_version_number
    view["manifestHash"] = row.manifest_hash
    if row.forked_from is not None:
        view["forkedFrom"] = row.forked_from
    if row.recipe.get("secrets"):
        view["slots"] = _slots(row, secret_names(row.uid) if held is None else held)
    view.update(version=row.version, appliedVersion=row.applied_version, ownerUserId=row.owner_user_id)
    view["state"] = _state(row, facts)
    if row.kind == "pod":
        view["pod"] = _pod(row)
    if row.kind != "none":
        view["disk"] = _disk(row, facts)
    view["sessions"] = []
    view.update(_times(row, facts))
    return view


def etag(row: Environment) -> str:
    """Changes with labels, guard and Recipe, and with nothing else."""
    return etag_of({"uid": str(row.uid), "labels": row.labels, "owner": row.owner_user_id, "recipe": row.recipe})


def _slots(row: Environment, held: Collection[str]) -> list[dict[str, Any]]:
    slots = row.recipe["secrets"]
    return [
        {"name": name, "type": slots[name]["type"], "required": slots[name].get("required", False), "set": name in held}
        for name in sorted(slots)
    ]


def _state(row: Environment, facts: Facts) -> str:
    if row.kind == "none":
        return "ready"
    if row.kind == "pod":
        return row.observed if row.observed in ("running", "creating") else "stopped"
    if row.workspace_at is None:
        return "ready"
    used = row.last_active_at or row.workspace_at
    return "running" if facts.busy or used + facts.settings.idle > facts.now else "stopped"


def _pod(row: Environment) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "desired": row.desired,
        "observed": row.observed,
        "volumeGeneration": row.volume_gen,
        "hostEpoch": row.host_epoch,
    }
    optional = {"reason": row.reason, "imageDigest": row.image_digest, "unenforced": row.unenforced or None}
    pod.update({name: value for name, value in optional.items() if value is not None})
    return pod


def _disk(row: Environment, facts: Facts) -> dict[str, Any]:
    disk: dict[str, Any] = {}
    lease = lifecycle.lease(row, facts.now)
    if lease is not None:
        shown = ("kind", "version", "operationId", "startedAt", "until")
        disk["operation"] = {name: lease[name] for name in shown if name in lease}
    if row.disk_seed is not None:
        disk["seed"] = {name: value for name, value in row.disk_seed.items() if name != "artifactId"}
    if row.disk_latest is not None:
        disk["latestVersion"] = row.disk_latest
    return disk


def _times(row: Environment, facts: Facts) -> dict[str, str]:
    times: dict[str, str] = {}
    if row.kind == "pod" and row.observed == "running" and row.desired == "running" and not facts.busy:
        times["suspendAt"] = iso(lifecycle.idle_due(row, facts.idle(row.applied)))
    after = lifecycle.delete_after(row.recipe)
    if after is not None:
        times["deleteAt"] = iso(row.last_used_at + after)
    times["lastUsedAt"] = iso(row.last_used_at)
    times["createdAt"] = iso(row.created_at)
    times["updatedAt"] = iso(row.updated_at)
    return times
