"""Capability links: whoever holds one reads one file of one version until it expires, without another credential.

A link is an ES256 token of its own kind (``typ`` ``nylorun-artifact+jwt``). It dies early when its artifact or version
is deleted, or when its signing key is revoked.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from manifests.models import Artifact, ArtifactVersion
from manifests.services import trees
from manifests.services.artifacts import version_of
from nylorun import config
from nylorun.access import signing
from nylorun.access.errors import TokenExpired
from nylorun.blobs import Entry
from nylorun.db.tx import database_now
from nylorun.kernel.errors import NotFound, RequestRejected


def make_link(artifact: Artifact, version: ArtifactVersion, file: str | None, seconds: int) -> tuple[str, datetime]:
    """The URL of a link to the content of a file, or to ``file`` in a folder, and when it ends.

    Raises :class:`NotFound` when the folder has no such file.
    """
    target(artifact, version, file)
    now = _whole_second(database_now())
    claims: dict[str, Any] = {"art": artifact.pk, "ver": version.number}
    if file is not None:
        claims["file"] = file
    ttl = timedelta(seconds=seconds)
    token = signing.mint(signing.ARTIFACT, artifact.pk, claims, ttl=ttl, now=now)
    if len(token) > signing.TOKEN_MAX:
        raise RequestRejected("The path of the file is too long for a link: read it with its own route.")
    return f"{config.current().public_url}/v1/artifact-links/{token}", now + ttl


def _whole_second(moment: datetime) -> datetime:
    """The next one, as tokens count: so a link lives as long as was asked, and ends at the moment it names."""
    return (moment + timedelta(microseconds=999_999)).replace(microsecond=0)


def open_link(token: str) -> tuple[Artifact, Entry]:
    """What a link leads to; raises :class:`TokenExpired` for one that is over, the opaque 404 for everything else."""
    try:
        claims = signing.verify(signing.ARTIFACT, token, now=database_now())
    except signing.TokenOver:
        raise TokenExpired from None
    except signing.TokenInvalid:
        raise NotFound from None
    artifact = Artifact.objects.reachable().filter(pk=claims["art"]).first()
    if artifact is None:
        raise NotFound
    version = version_of(artifact, claims["ver"])
    return artifact, target(artifact, version, claims.get("file"))


def target(artifact: Artifact, version: ArtifactVersion, file: str | None) -> Entry:
    """The file that is meant: of a folder the one named, of a file artifact its content."""
    if artifact.kind == "file" and file is not None:
        raise RequestRejected("This artifact is a file: leave out the path of a file in it.")
    if artifact.kind == "folder" and file is None:
        raise RequestRejected("This artifact is a folder: name one of its files.")
    return trees.file_at(version, trees.CONTENT if file is None else file.encode())
