"""The journal of calls: an Effect makes its Environment busy until it ends or its lease lapses.

* ``pending``: journaled, nothing sent; ``invoking``: sent, no answer yet; ``completed``: answer stored (keyed rows
  only: a row without a key goes with its call).
* Once ``lease_until`` has passed the row makes nothing busy; a call that was ``invoking`` then is never run again.
* ``uid`` is the Environment row's: a row made again under the id never meets an earlier row's answers.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self
from uuid import UUID

from django.db import models
from django.db.models import Q

RUNNING = ("pending", "invoking")


class EffectRows(models.QuerySet["Effect"]):
    """Querysets in the words of the domain."""

    def busy(self, uid: UUID, now: datetime) -> Self:
        """Calls that keep disk work, stop, reset and delete away now."""
        return self.filter(uid=uid, status__in=RUNNING, lease_until__gt=now)

    def busy_among(self, uids: list[UUID], now: datetime) -> models.QuerySet[Effect, UUID]:
        """Of these rows, the uids on which a call runs now."""
        return self.filter(uid__in=uids, status__in=RUNNING, lease_until__gt=now).values_list("uid", flat=True)


class Effect(models.Model):
    """One Tool call outside a Session."""

    id = models.TextField(primary_key=True, db_collation="C")
    environment_id = models.TextField(db_collation="C")
    uid = models.UUIDField()
    key = models.TextField(null=True)
    kind = models.TextField(default="sandbox")
    tool = models.TextField()
    hash = models.TextField()
    status = models.TextField()
    answer = models.BinaryField(null=True)
    host_epoch = models.BigIntegerField(null=True)
    lease_until = models.DateTimeField()
    started_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)

    objects = EffectRows.as_manager()

    class Meta:
        db_table = "environments_effect"
        constraints = [
            models.UniqueConstraint(fields=["uid", "key"], name="effect_key_is_unique"),
            models.CheckConstraint(
                condition=Q(status__in=("pending", "invoking", "completed", "cancelled")), name="effect_status"
            ),
        ]
        indexes = [
            models.Index(fields=["uid"], name="effect_busy", condition=Q(status__in=RUNNING)),
            models.Index(fields=["lease_until"], name="effect_lapsed", condition=Q(status__in=RUNNING)),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.tool} {self.status}"
