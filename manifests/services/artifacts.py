"""Artifacts: files and folders in numbered versions, made, listed and deleted. Disk artifacts are not among them.

An artifact of no Session is the Tenant's: applications reach it, a Caller acting for a person does not. There are no
Sessions yet, so what names one does not exist. Locks: ``artifacts.quota``, then the artifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from manifests.models import Artifact, ArtifactRows, ArtifactVersion
from manifests.services import content
from manifests.services.uploads import Stored, stored
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact
from nylorun.http.body import RawBody
from nylorun.http.caller import Caller
from nylorun.kernel.errors import NotFound, ServiceUnavailable
from nylorun.tenant.store import hold_artifact_quota


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """What an artifact is made with; none of it changes later."""

    name: str
    kind: str
    media_type: str
    label: str | None = None
    session_id: str | None = None


Made = tuple[Artifact, ArtifactVersion]


def reachable(caller: Caller) -> ArtifactRows:
    """The artifacts in this Caller's reach; those outside look missing."""
    rows = Artifact.objects.reachable()
    return rows.none() if caller.for_person else rows


def find(caller: Caller, artifact_id: str) -> Artifact:
    """The artifact of this id; the opaque 404 when it is missing or out of reach."""
    artifact = reachable(caller).filter(pk=artifact_id).first()
    if artifact is None:
        raise NotFound
    return artifact


def version_of(artifact: Artifact, number: int | None) -> ArtifactVersion:
    """A version by its number, the latest for ``None``; the opaque 404 when there is none."""
    wanted = artifact.latest_version if number is None else number
    version = None if wanted is None else artifact.versions.filter(number=wanted).first()
    if version is None:
        raise NotFound
    return version


def create(caller: Caller, wanted: NewArtifact, body: RawBody, limit: int) -> Made:
    """Store the body as version 1 of a new artifact; durable when it returns. ``limit`` as :func:`stored`."""
    if caller.for_person or wanted.session_id is not None:
        raise NotFound

    def work(tx: Tx, tree: Stored) -> Made:
        hold_artifact_quota(tx)
        now = tx.now()
        artifact = Artifact(
            id=f"af{tree.holder.removeprefix('av')}",
            kind=wanted.kind,
            name=wanted.name,
            media_type=wanted.media_type,
            label=wanted.label,
            session_id=wanted.session_id,
            created_at=now,
        )
        artifact.save(force_insert=True)
        return artifact, _add(artifact, tree, caller, now)

    with stored(wanted.kind, body, limit) as tree:
        return transact(lambda tx: work(tx, tree))


def add_version(caller: Caller, artifact: Artifact, body: RawBody, limit: int) -> Made:
    """Store the body as the next version; the opaque 404 when the artifact was deleted meanwhile."""

    def work(tx: Tx, tree: Stored) -> Made:
        hold_artifact_quota(tx)
        row = tx.hold(Rank.ARTIFACT, reachable(caller).filter(pk=artifact.pk), artifact.pk)
        if row is None:
            raise NotFound
        return row, _add(row, tree, caller, tx.now())

    with stored(artifact.kind, body, limit) as tree:
        return transact(lambda tx: work(tx, tree))


def delete(caller: Caller, artifact_id: str) -> bool:
    """Delete an artifact with all versions; false when there is none. Who reads a version now may read on."""

    def work(tx: Tx) -> bool:
        row = tx.hold(Rank.ARTIFACT, reachable(caller).filter(pk=artifact_id), artifact_id, to_delete=True)
        if row is None:
            return False
        content.release(tx, list(row.versions.order_by("number").values_list("holder", flat=True)))
        row.delete()
        return True

    deleted = transact(work)
    if not deleted and caller.for_person:
        raise NotFound
    return deleted


def page(caller: Caller, session_id: str | None, after: tuple[datetime, str] | None, size: int) -> Sequence[Artifact]:
    """Up to ``size`` artifacts behind ``after`` (creation time and id), oldest first."""
    rows = reachable(caller).order_by("created_at", "id")
    if session_id is not None:
        rows = rows.filter(session_id=session_id)
    if after is not None:
        moment, artifact_id = after
        later = Q(created_at__gt=moment) | Q(id__gt=artifact_id)
        rows = rows.filter(later, created_at__gte=moment)
    return list(rows[:size])


def _add(artifact: Artifact, tree: Stored, caller: Caller, now: datetime) -> ArtifactVersion:
    """The next version of an artifact whose row is held, or new; its content stays with ``tree.holder``."""
    if content.is_stale(tree.holder, now):
        raise ServiceUnavailable("The upload took too long to be kept. Send it again.")
    artifact.high_version += 1
    artifact.latest_version = artifact.high_version
    artifact.save(update_fields=["high_version", "latest_version"])
    version = ArtifactVersion(
        artifact=artifact,
        number=artifact.high_version,
        root=tree.root,
        size=tree.size,
        file_count=tree.files,
        sha256=tree.sha256,
        actor=caller.actor,
        holder=tree.holder,
        created_at=now,
    )
    version.save(force_insert=True)
    return version
