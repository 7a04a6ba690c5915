"""Rows of the library: Manifests and artifacts in numbered versions, and the content both stand on.

Invariants (constraints repeat them):
  * a ``Manifest`` is one row per name, so that saves and the delete of that name have one row to lock; it has at least
    one version once its transaction is committed;
  * a ``ManifestVersion`` never changes; numbers of one name start at 1 and have no gaps;
  * whoever was made from a version holds it by a restricting foreign key, so a version in use cannot go;
  * a ``DefinitionFile`` row is written after its content is on the disk: a row means that the content was there;
  * an ``Artifact`` with an ``environment_uid`` is the disk artifact of that Environment, at most one of each;
    ``high_version`` never goes down, so no number of an artifact is used twice;
  * an ``ArtifactVersion`` never changes; what it needs in the blob store is named by the ``Content`` rows of its
    ``holder``, which were written before the blobs were;
  * of the ``Content`` rows of one blob exactly one is ``counted``, and the ``amount`` of the lock row
    ``artifacts.quota`` is the sum of the counted sizes and of the definition files; all four change under that lock;
  * an ``Unnamed`` row tells since when no ``Content`` row names a blob; while it is ``going``, none may.
"""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models import F, Q

SHA256 = r"^[0-9a-f]{64}$"
ARTIFACT_KINDS = ("file", "folder")


class Manifest(models.Model):
    """A name. Locked by whoever saves a version of it or deletes it."""

    name = models.TextField(primary_key=True, db_collation="C")

    class Meta:
        db_table = "manifests_manifest"

    def __str__(self) -> str:
        return self.name


class ManifestVersion(models.Model):
    """What was saved under a name, once: the body in its normal form and the hash of it."""

    manifest = models.ForeignKey(Manifest, on_delete=models.CASCADE, db_column="name", related_name="versions")
    number = models.IntegerField()
    body = models.JSONField()
    hash = models.TextField()
    saved_by = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "manifests_version"
        constraints = [
            models.UniqueConstraint(fields=["manifest", "number"], name="manifest_version_number"),
            models.CheckConstraint(condition=Q(number__gte=1), name="manifest_version_counts_from_1"),
        ]

    def __str__(self) -> str:
        return f"{self.manifest_id}@{self.number}"


class DefinitionFile(models.Model):
    """Content the Tenant holds, found by its hash: 64 lower-case hex digits."""

    sha256 = models.TextField(primary_key=True, db_collation="C")
    size = models.BigIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "manifests_definition_file"
        constraints = [
            models.CheckConstraint(condition=Q(sha256__regex=SHA256), name="definition_file_sha256"),
            models.CheckConstraint(condition=Q(size__gte=0), name="definition_file_size"),
        ]

    def __str__(self) -> str:
        return f"sha256:{self.sha256}"


class ArtifactRows(models.QuerySet["Artifact"]):
    """Querysets in the words of the domain."""

    def reachable(self) -> Self:
        """Those the routes of artifacts know: no disk artifact is among them."""
        return self.filter(environment_uid__isnull=True)

    def tenant_wide(self) -> Self:
        """Those of no Session and no Environment: the ones a Manifest may name."""
        return self.reachable().filter(session_id__isnull=True)


class Artifact(models.Model):
    """A file or a folder in numbered versions; locked by whoever adds or removes one."""

    id = models.TextField(primary_key=True, db_collation="C")
    kind = models.TextField()
    name = models.TextField()
    media_type = models.TextField()
    label = models.TextField(null=True)  # noqa: DJ001 NULL says that there is none: an empty text would be one
    session_id = models.TextField(null=True, db_collation="C")  # noqa: DJ001 NULL says Tenant-wide
    environment_uid = models.UUIDField(null=True, unique=True)
    latest_version = models.IntegerField(null=True)
    high_version = models.IntegerField(default=0)
    orphaned = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    objects = ArtifactRows.as_manager()

    class Meta:
        db_table = "manifests_artifact"
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=ARTIFACT_KINDS), name="artifact_kind"),
            models.CheckConstraint(
                condition=Q(latest_version__isnull=True) | Q(latest_version__range=(1, F("high_version"))),
                name="artifact_latest_version",
            ),
            models.CheckConstraint(
                condition=Q(environment_uid__isnull=True) | Q(session_id__isnull=True), name="artifact_has_one_owner"
            ),
        ]
        indexes = [
            models.Index(fields=["created_at", "id"], name="artifact_listed", condition=Q(environment_uid=None)),
            models.Index(
                fields=["session_id", "created_at", "id"], name="artifact_of_session", condition=~Q(session_id=None)
            ),
            models.Index(fields=["id"], name="artifact_orphaned", condition=Q(orphaned=True)),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.name}"


class ArtifactVersion(models.Model):
    """One version: the root blob of its tree, and who named its content.

    ``damaged``: a part of it was found missing or altered; the next copy of the same disk stores all of it anew.
    """

    artifact = models.ForeignKey(Artifact, on_delete=models.CASCADE, related_name="versions")
    number = models.IntegerField()
    root = models.TextField()
    size = models.BigIntegerField()
    file_count = models.IntegerField()
    sha256 = models.TextField()
    cause = models.TextField(null=True)  # noqa: DJ001 NULL on what was uploaded
    actor = models.TextField(null=True)  # noqa: DJ001 NULL when nobody asked
    operation_id = models.TextField(null=True)  # noqa: DJ001 NULL on what was uploaded
    holder = models.TextField(unique=True, db_collation="C")
    damaged = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "manifests_artifact_version"
        constraints = [
            models.UniqueConstraint(fields=["artifact", "number"], name="artifact_version_number"),
            models.CheckConstraint(condition=Q(number__gte=1), name="artifact_version_counts_from_1"),
            models.CheckConstraint(condition=Q(root__regex=SHA256), name="artifact_version_root"),
        ]

    def __str__(self) -> str:
        return f"{self.artifact_id}@{self.number}"


class Content(models.Model):
    """A holder's need of one blob. Written and removed in batches by :mod:`manifests.services.content` alone."""

    pk = models.CompositePrimaryKey("holder", "blob")
    holder = models.TextField(db_collation="C")
    blob = models.TextField(db_collation="C")
    size = models.BigIntegerField()
    counted = models.BooleanField()

    class Meta:
        db_table = "manifests_content"
        constraints = [
            models.UniqueConstraint(fields=["blob"], name="content_counted_once", condition=Q(counted=True)),
        ]
        indexes = [models.Index(fields=["blob"], name="content_uncounted", condition=Q(counted=False))]

    def __str__(self) -> str:
        return f"{self.holder} needs {self.blob}"


class Unnamed(models.Model):
    """A blob that no content row names: since when, or, once it is ``going``, since when it is being removed."""

    blob = models.TextField(primary_key=True, db_collation="C")
    since = models.DateTimeField()
    going = models.BooleanField(default=False)

    class Meta:
        db_table = "manifests_unnamed"
        indexes = [models.Index(fields=["since"], name="unnamed_since")]

    def __str__(self) -> str:
        return self.blob
