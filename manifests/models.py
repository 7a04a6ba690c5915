"""Rows of the library: Manifests in numbered versions, and the definition files they name by hash.

Invariants (constraints repeat them):
  * a ``Manifest`` is one row per name, so that saves and the delete of that name have one row to lock; it has at least
    one version once its transaction is committed;
  * a ``ManifestVersion`` never changes; numbers of one name start at 1 and have no gaps;
  * whoever was made from a version holds it by a restricting foreign key, so a version in use cannot go;
  * a ``DefinitionFile`` row is written after its content is on the disk: a row means that the content was there.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

SHA256 = r"^[0-9a-f]{64}$"


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
