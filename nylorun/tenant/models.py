"""Rows of the Tenant itself: its settings, the locks that serialise what rows alone cannot, and the installation's id.

* A ``TenantSetting`` is read when it is used; no process caches one.
* A ``TenantLock`` also holds the number its lock guards, so that no holder counts rows.
* ``Installation`` has exactly one row, drawn at its first use: Sandbox objects that bear another id are foreign.
"""

from __future__ import annotations

from django.db import models


class TenantSetting(models.Model):
    """One document by name. Edited by routes and by the admin through the same schema."""

    name = models.TextField(primary_key=True, db_collation="C")
    value = models.JSONField()
    updated_at = models.DateTimeField()
    updated_by = models.TextField()

    class Meta:
        db_table = "tenant_setting"

    def __str__(self) -> str:
        return self.name


class TenantLock(models.Model):
    """A lock that is a row, with what it guards: ``environments.create`` counts the live Environments,
    ``artifacts.quota`` the bytes of all stored content.
    """

    name = models.TextField(primary_key=True, db_collation="C")
    amount = models.BigIntegerField(default=0)

    class Meta:
        db_table = "tenant_lock"

    def __str__(self) -> str:
        return f"{self.name}: {self.amount}"


class Installation(models.Model):
    """The identity of this installation, kept with its database."""

    only = models.BooleanField(primary_key=True, default=True)
    id = models.UUIDField(unique=True)

    class Meta:
        db_table = "tenant_installation"
        constraints = [models.CheckConstraint(condition=models.Q(only=True), name="installation_is_one")]

    def __str__(self) -> str:
        return str(self.id)
