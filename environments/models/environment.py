"""The Environment row: what it is, what it runs, and where its machine stands.

Invariants (CHECK constraints repeat them):
  * kind ``pod`` and the pod columns come together; the other kinds have no machine;
  * ``uid`` never changes and is never used again: everything outside the database bears it;
  * ``desired`` is written by requests, ``observed`` only by what was seen (reconcile, join);
  * ``disk_latest`` is the ``latest_version`` of its disk artifact, written in the same commits: views read it here;
  * ``has_secrets`` says whether its Vault holds any, written in the same commits: a call on one without asks no Vault;
  * a row with ``desired = deleted`` is invisible to every route and stays until nothing of its machine is left.

Changed only by a transaction that holds the row's lock.
"""

from __future__ import annotations

import uuid
from functools import lru_cache
from typing import Any, Self

from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KT

from manifests.models import ManifestVersion
from nylorun.db.rows import Table

KINDS = ("virtual", "pod", "none")
NOUNS = ("environment", "agent")
DESIRED = ("running", "suspended", "deleted")
OBSERVED = ("creating", "running", "suspended", "lost", "failed", "deleting")


class EnvironmentRows(models.QuerySet["Environment"]):
    """Querysets in the words of the domain."""

    def live(self) -> Self:
        """Rows every route sees: not being deleted."""
        return self.filter(Q(desired__isnull=True) | ~Q(desired="deleted"))

    def named(self, environment_id: str) -> Self:
        """The row of this id, live or being deleted."""
        return self.filter(pk=environment_id)

    def starting_from(self, artifact_id: str) -> Self:
        """Rows whose disk still has to be filled from a version of this disk artifact."""
        return self.alias(artifact=KT("disk_seed__artifactId")).filter(disk_seed__isnull=False, artifact=artifact_id)

    def labelled(self, labels: dict[str, str]) -> Self:
        """Rows that bear all of these labels."""
        return self.filter(labels__contains=labels) if labels else self


class Environment(models.Model):
    """One sandbox and one Vault under one id."""

    id = models.TextField(primary_key=True, db_collation="C")
    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    kind = models.TextField()
    noun = models.TextField(default="environment")
    labels = models.JSONField(default=dict)
    owner_user_id = models.TextField(null=True)
    recipe = models.JSONField()
    applied = models.JSONField()
    version = models.IntegerField(default=1)
    applied_version = models.IntegerField(default=1)
    manifest = models.ForeignKey(ManifestVersion, null=True, on_delete=models.PROTECT, related_name="environments")
    manifest_name = models.TextField(null=True, db_collation="C")
    manifest_version_number = models.IntegerField(null=True)
    manifest_hash = models.TextField()
    forked_from = models.JSONField(null=True)
    disk_op = models.JSONField(null=True)
    disk_seed = models.JSONField(null=True)
    disk_latest = models.IntegerField(null=True)
    has_secrets = models.BooleanField(default=False, db_default=False)
    setup_done_gen = models.IntegerField(null=True)
    last_used_at = models.DateTimeField()
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    last_active_at = models.DateTimeField(null=True)
    workspace_at = models.DateTimeField(null=True)
    delete_check_at = models.DateTimeField(null=True)
    # ------------------------------------------------------------------------------------------------- kind pod only
    driver = models.TextField(null=True)
    k8s_name = models.TextField(null=True)
    volume_gen = models.IntegerField(null=True)
    desired = models.TextField(null=True)
    observed = models.TextField(null=True)
    rev = models.BigIntegerField(null=True)
    host_epoch = models.BigIntegerField(null=True)
    pod_uid = models.TextField(null=True)
    join_token_hash = models.TextField(null=True)
    volume_id = models.TextField(null=True)
    image_digest = models.TextField(null=True)
    image_digest_for = models.TextField(null=True)
    retiring = models.TextField(null=True)
    started_at = models.DateTimeField(null=True)
    idle_at = models.DateTimeField(null=True)
    reason = models.TextField(null=True)
    engine_address = models.TextField(null=True)
    engine_seen_at = models.DateTimeField(null=True)
    suspend_after = models.TextField(null=True)
    unenforced = models.JSONField(null=True)

    objects = EnvironmentRows.as_manager()

    class Meta:
        db_table = "environments_environment"
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=KINDS), name="environment_kind"),
            models.CheckConstraint(condition=Q(noun__in=NOUNS), name="environment_noun"),
            models.CheckConstraint(
                condition=(
                    Q(kind="pod", desired__in=DESIRED, observed__in=OBSERVED, rev__gte=1, host_epoch__gte=0)
                    & Q(volume_gen__gte=0, k8s_name__isnull=False, driver__isnull=False)
                )
                | (~Q(kind="pod") & Q(desired__isnull=True, observed__isnull=True, k8s_name__isnull=True)),
                name="environment_pod_columns",
            ),
            models.CheckConstraint(
                condition=Q(manifest__isnull=True, manifest_name__isnull=True, manifest_version_number__isnull=True)
                | Q(manifest_name__isnull=False, manifest_version_number__isnull=False),
                name="environment_manifest_columns",
            ),
        ]
        indexes = [
            GinIndex(fields=["labels"], opclasses=["jsonb_path_ops"], name="environment_labels"),
            models.Index(fields=["idle_at"], name="environment_idle", condition=Q(desired="running")),
            models.Index(
                fields=["delete_check_at"], name="environment_unused", condition=Q(delete_check_at__isnull=False)
            ),
            models.Index(KT("disk_seed__artifactId"), name="environment_seeded", condition=Q(disk_seed__isnull=False)),
            models.Index(
                fields=["updated_at"],
                name="environment_moving",
                condition=Q(desired="deleted") | Q(retiring__isnull=False) | Q(observed="creating"),
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def live(self) -> bool:
        """Whether routes see it."""
        return self.desired != "deleted"

    def write(self, **patch: Any) -> None:
        """Set and save these columns, nothing else; the caller holds the row's lock."""
        for name, value in patch.items():
            setattr(self, name, value)
        rows().update(self.pk, patch)


LIVE = "desired IS NULL OR desired <> 'deleted'"


@lru_cache(maxsize=1)
def rows() -> Table[Environment]:
    """Single rows, read and written with SQL that is built once."""
    return Table(Environment)
