"""Disk versions: the numbered trees of one Environment, kept in its folder artifact.

* The artifact is made with the first version and goes with its Environment; numbers are never used twice.
* A version that a disk seed or an unfinished Operation names stays: its content is still to be read.
* The Environment's ``disk_latest`` is the artifact's ``latest_version``, written in the same commits.
* Content rows belong to the Operation that wrote them and go afterwards, in batches. Locks: Environment row, artifact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from environments.errors import BUSY_RETRY, DiskVersionNotFound, EnvironmentBusy
from environments.models import Environment, Operation
from environments.models.operation import UNFINISHED
from environments.services.read import live_row
from environments.services.rows import hold_live, later
from manifests.models import Artifact, ArtifactVersion
from manifests.services import content
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact
from nylorun.kernel.clock import iso
from nylorun.kernel.ids import ulid


@dataclass(frozen=True, slots=True)
class Copied:
    """A tree that is stored whole: what a version row holds of it."""

    root: str
    sha256: str
    size: int
    files: int


@dataclass(frozen=True, slots=True)
class Kept:
    """The version that now holds this content; ``created`` is false when it was the latest already."""

    artifact_id: str
    number: int
    created: bool
    size: int
    files: int


def hold_disk(tx: Tx, uid: UUID) -> Artifact | None:
    """Lock the disk artifact of the Environment with this ``uid``, if it has one."""
    found = Artifact.objects.filter(environment_uid=uid).values_list("pk", flat=True).first()
    return None if found is None else tx.hold(Rank.ARTIFACT, Artifact.objects.filter(pk=found), str(found))


def hold_disks(tx: Tx, rows: Sequence[Environment]) -> list[Artifact]:
    """Lock the disk artifacts of these rows, by ascending id."""
    return tx.hold_all(Rank.ARTIFACT, Artifact.objects.filter(environment_uid__in=[row.uid for row in rows]))


def find(artifact: Artifact, number: int) -> ArtifactVersion | None:
    """The version of this number."""
    return ArtifactVersion.objects.filter(artifact=artifact, number=number).first()


def root_of(artifact_id: str, number: int) -> str | None:
    """The root of a version's tree, read without a lock: whoever names the version keeps it."""
    rows = ArtifactVersion.objects.filter(artifact_id=artifact_id, number=number)
    return rows.values_list("root", flat=True).first()


def holder_of(artifact_id: str, number: int) -> str | None:
    """The Operation that made a version, which no other version ever has: the key of its kept disk. Without a lock."""
    rows = ArtifactVersion.objects.filter(artifact_id=artifact_id, number=number)
    return rows.values_list("holder", flat=True).first()


def made_by(operation_ids: Iterable[str]) -> set[str]:
    """Those of these Operations whose version is there."""
    return set(ArtifactVersion.objects.filter(holder__in=list(operation_ids)).values_list("holder", flat=True))


def latest_root(uid: UUID) -> tuple[str | None, bool]:
    """The root of the newest version's tree, what a copy compares with, and whether that is known to be damaged."""
    rows = ArtifactVersion.objects.filter(artifact__environment_uid=uid).order_by("-number")
    return rows.values_list("root", "damaged").first() or (None, False)


def note_damage(root: str) -> None:
    """A part of this tree is missing or altered: the next copy of a disk that it was made of relies on none of it."""
    ArtifactVersion.objects.filter(root=root).update(damaged=True)


# ------------------------------------------------------------------------------------------------------------ writing


def keep(
    row: Environment, artifact: Artifact | None, tree: Copied, *, cause: str, operation: Operation, now: datetime
) -> tuple[Kept, list[str]]:
    """Make the next version of this tree, or find that the latest holds it. The caller holds row and artifact.

    Returns also the holders whose content rows have lost their version.
    """
    if artifact is None:
        artifact = Artifact(
            id=ulid("af", now), kind="folder", name="workspace", media_type="", environment_uid=row.uid, created_at=now
        )
        artifact.save(force_insert=True)
    latest = None if artifact.latest_version is None else find(artifact, artifact.latest_version)
    if latest is not None and latest.sha256 == tree.sha256:
        kept = Kept(artifact.id, latest.number, False, latest.size, latest.file_count)
        return kept, [_repair(latest, tree, operation) if latest.damaged else operation.id]
    number = artifact.high_version + 1
    ArtifactVersion.objects.create(
        artifact=artifact, number=number, root=tree.root, size=tree.size, file_count=tree.files, sha256=tree.sha256,
        cause=cause, actor=operation.actor, operation_id=operation.id, holder=operation.id, created_at=now,
    )  # fmt: skip
    artifact.latest_version = artifact.high_version = number
    artifact.save(update_fields=["latest_version", "high_version"])
    row.write(disk_latest=number)
    return Kept(artifact.id, number, True, tree.size, tree.files), _prune(row, artifact)


def _repair(version: ArtifactVersion, tree: Copied, operation: Operation) -> str:
    """Let a damaged version hold the same content as it was stored anew; the holder whose content it had."""
    before = version.holder
    version.root, version.holder, version.damaged = tree.root, operation.id, False
    version.save(update_fields=["root", "holder", "damaged"])
    return before


def _prune(row: Environment, artifact: Artifact) -> list[str]:
    """Remove the oldest versions beyond ``lifecycle.keep``, but none that is still to be read."""
    keep = row.applied.get("lifecycle", {}).get("keep")
    if keep is None:
        return []
    numbers = list(artifact.versions.order_by("-number").values_list("number", flat=True)[keep:])
    return _remove(artifact, set(numbers) - _named(artifact.id))


def _remove(artifact: Artifact, numbers: Iterable[int]) -> list[str]:
    """Remove these version rows; the holders of their content."""
    rows = artifact.versions.filter(number__in=list(numbers))
    holders = list(rows.values_list("holder", flat=True))
    rows.delete()
    return holders


def _named(artifact_id: str) -> set[int]:
    """Numbers of versions that a disk seed or an unfinished Operation still reads."""
    seeds = Environment.objects.starting_from(artifact_id).values_list("disk_seed", flat=True)
    work = Operation.objects.naming(artifact_id).values_list("data", flat=True)
    return {int(one["version"]) for one in (*seeds, *work) if one.get("version") is not None}


def delete_version(environment_id: str, number: int) -> bool:
    """Delete one version; false when there is none. Its content goes for every reader with this commit."""

    def work(tx: Tx) -> bool:
        row = hold_live(tx, environment_id)
        artifact = hold_disk(tx, row.uid)
        now = tx.now()
        if artifact is None or find(artifact, number) is None:
            return False
        if number in _named(artifact.id):
            raise EnvironmentBusy(f"Version {number} is still being read.", retry_after=BUSY_RETRY)
        content.release(tx, _remove(artifact, [number]))
        newest = artifact.versions.order_by("-number").values_list("number", flat=True).first()
        artifact.latest_version = newest
        artifact.save(update_fields=["latest_version"])
        row.write(disk_latest=newest, updated_at=later(row.updated_at, now))
        return True

    return transact(work)


def release_disks(tx: Tx, disks: Iterable[Artifact]) -> None:
    """Their Environments go: so do artifact and versions, unless another disk still starts from one of them."""
    for artifact in disks:
        if _named(artifact.id):
            artifact.orphaned = True
            artifact.save(update_fields=["orphaned"])
        else:
            remove_disk(tx, artifact)


def remove_disk(tx: Tx, artifact: Artifact) -> None:
    """Remove a disk artifact with its versions; their content follows in batches. The caller holds it."""
    content.release(tx, list(artifact.versions.values_list("holder", flat=True)))
    artifact.delete()


def remove_orphaned(limit: int = 100) -> int:
    """Remove disks whose Environment is gone and that no disk seed names any more; returns how many. For the sweep."""
    found = Artifact.objects.filter(orphaned=True).order_by("pk").values_list("pk", flat=True)[:limit]
    return sum(_remove_orphan(id) for id in found)


def _remove_orphan(artifact_id: str) -> bool:
    def work(tx: Tx) -> bool:
        artifact = tx.hold(Rank.ARTIFACT, Artifact.objects.filter(pk=artifact_id, orphaned=True), artifact_id)
        if artifact is None or _named(artifact_id):
            return False
        remove_disk(tx, artifact)
        return True

    return transact(work)


def release_abandoned(older: timedelta, limit: int = 100) -> int:
    """Give back what Operations that are over have claimed for no version; returns how many. For the sweep.

    Only those older than ``older`` are looked at: a younger one may still run.
    """

    def work(tx: Tx) -> int:
        holders = content.unversioned("op", tx.now() - older, limit)
        running = set(Operation.objects.filter(pk__in=holders, state__in=UNFINISHED).values_list("pk", flat=True))
        over = [holder for holder in holders if holder not in running]
        for holder in over:
            content.release(tx, [holder])
        return len(over)

    return transact(work)


def release_late(operation_id: str) -> bool:
    """Give back what a copy claimed for an Operation that has ended without its version; false when it has not.

    For the worker whose attempt was ended by others: it claims nothing any more, and what it claimed after that end
    nobody else would give back before :func:`release_abandoned`.
    """

    def work(tx: Tx) -> bool:
        unfinished = Operation.objects.filter(pk=operation_id, state__in=UNFINISHED).exists()
        if unfinished or made_by([operation_id]):
            return False
        content.release(tx, [operation_id])
        return True

    return transact(work)


# ------------------------------------------------------------------------------------------------------------ reading


def disk_by_uid(uid: UUID) -> Artifact | None:
    """The disk artifact of the Environment with this ``uid``."""
    return Artifact.objects.filter(environment_uid=uid).first()


def disk_of(environment_id: str) -> Artifact | None:
    """The disk artifact of a live Environment, unlocked; 404 when there is no such Environment."""
    return disk_by_uid(live_row(environment_id).uid)


def page(artifact: Artifact, below: int | None, size: int) -> list[ArtifactVersion]:
    """Up to ``size`` versions, newest first, with numbers below ``below``."""
    rows = artifact.versions.order_by("-number")
    return list((rows if below is None else rows.filter(number__lt=below))[:size])


def root_to_restore(environment_id: str, number: int) -> str | None:
    """The root of this version of a live pod: a restore of one gives the present volume up."""
    row = live_row(environment_id)
    artifact = disk_by_uid(row.uid) if row.kind == "pod" else None
    return None if artifact is None else root_of(artifact.id, number)


def version_view(environment_id: str, number: int) -> dict[str, Any]:
    """One version as callers see it; 404 when it is missing."""
    artifact = disk_of(environment_id)
    version = None if artifact is None else find(artifact, number)
    if version is None:
        raise DiskVersionNotFound(environment_id, number)
    return present_version(version)


def present_version(version: ArtifactVersion) -> dict[str, Any]:
    """Row to view."""
    return {
        "version": version.number,
        "size": version.size,
        "fileCount": version.file_count,
        "sha256": version.sha256,
        "cause": version.cause,
        "actor": version.actor,
        "operationId": version.operation_id,
        "createdAt": iso(version.created_at),
    }
