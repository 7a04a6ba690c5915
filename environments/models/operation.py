"""One piece of long work: a row with a state, run by a worker under a lease, started again after a crash.

    queued -> running -> succeeded | failed | cancelled
    queued -> cancelled | failed          running -> queued (tried again)

Invariants: ``attempt`` counts starts and is the fence of every write-back; ``lease_until`` is set exactly while it
runs; an ended row never changes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KT

STATES = ("queued", "running", "succeeded", "failed", "cancelled")
KINDS = ("snapshot", "restore", "seed", "fork", "setup", "recover")
UNFINISHED = ("queued", "running")


class OperationRows(models.QuerySet["Operation"]):
    """Querysets in the words of the domain."""

    def unfinished(self, environment_ids: Sequence[str]) -> Self:
        """Work that still runs or waits on these Environments."""
        return self.filter(environment_id__in=environment_ids, state__in=UNFINISHED)

    def naming(self, artifact_id: str) -> Self:
        """Unfinished work that starts from, or is about to use, a version of this disk artifact."""
        return self.alias(artifact=KT("data__artifactId")).filter(state__in=UNFINISHED, artifact=artifact_id)

    def lapsed(self, now: datetime) -> Self:
        """Running work whose worker stopped renewing, and queued work that is due."""
        return self.filter(Q(state="running", lease_until__lte=now) | Q(state="queued", due_at__lte=now))


class Operation(models.Model):
    """The row of one Operation; it names its Environment by id text, without a foreign key."""

    id = models.TextField(primary_key=True, db_collation="C")
    kind = models.TextField()
    environment_id = models.TextField(db_collation="C")
    uid = models.UUIDField()
    state = models.TextField(default="queued")
    attempt = models.IntegerField(default=0)
    progress = models.JSONField(null=True)
    error = models.JSONField(null=True)
    result = models.JSONField(null=True)
    http_status = models.IntegerField(null=True)
    input = models.JSONField(default=dict)
    data = models.JSONField(default=dict)
    cancel_requested = models.BooleanField(default=False)
    actor = models.TextField()
    due_at = models.DateTimeField(null=True)
    lease_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    objects = OperationRows.as_manager()

    class Meta:
        db_table = "environments_operation"
        constraints = [
            models.CheckConstraint(condition=Q(state__in=STATES), name="operation_state"),
            models.CheckConstraint(condition=Q(kind__in=KINDS), name="operation_kind"),
            models.CheckConstraint(
                condition=Q(state="running", lease_until__isnull=False)
                | (~Q(state="running") & Q(lease_until__isnull=True)),
                name="operation_lease",
            ),
        ]
        indexes = [
            models.Index(fields=["environment_id"], name="operation_of_environment"),
            models.Index(fields=["due_at"], name="operation_open", condition=Q(state__in=UNFINISHED)),
            models.Index(fields=["finished_at"], name="operation_ended", condition=Q(finished_at__isnull=False)),
            models.Index(KT("data__artifactId"), name="operation_naming", condition=Q(state__in=UNFINISHED)),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.kind} {self.state}"
