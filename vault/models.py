"""Rows of the strongroom. Nobody outside this application imports them.

A Vault belongs to one Environment row by its ``uid`` (which is never used again), or to the host when it has none. The
foreign key that removes a Vault with its Environment is laid by the Environments' first migration: rows above may know
rows below, not the other way round.
"""

from __future__ import annotations

import uuid

from django.db import models


class Vault(models.Model):
    """Where the Secrets of one Environment live."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    environment_uid = models.UUIDField(unique=True, null=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "vault_vault"

    def __str__(self) -> str:
        return str(self.id)
