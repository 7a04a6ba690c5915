"""Rows of the strongroom. Nobody outside this application imports them.

* A ``Vault`` belongs to one Environment row by its ``uid`` (which is never used again); the one without is the host's.
  The foreign key that removes a Vault with its Environment is laid by the Environments' first migration: rows above
  may know rows below, not the other way round.
* A ``Secret`` goes with its Vault, by the database itself. Its value is sealed for exactly this row.
* A ``VaultAudit`` row outlives what it tells of: no foreign key, and the database refuses to change or delete it.
"""

from __future__ import annotations

import uuid
from typing import Self
from uuid import UUID

from django.db import models
from django.db.models import Q
from django.db.models.functions import Length
from django.db.models.lookups import Exact, GreaterThan

from nylorun.kernel.sealing import Sealed
from vault.bindings import Bound
from vault.keys import Place

SECRET_TYPES = ("environment_variable", "environment_secret", "bearer", "headers", "model")
ACTIONS = ("create", "rotate", "delete", "use", "copy")
OUTCOMES = ("created", "rotated", "deleted", "copied", "approved", "refused")


class Vault(models.Model):
    """Where the Secrets of one Environment live."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    environment_uid = models.UUIDField(unique=True, null=True)
    metadata = models.JSONField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "vault_vault"
        constraints = [
            models.UniqueConstraint(
                fields=["environment_uid"],
                condition=Q(environment_uid__isnull=True),
                nulls_distinct=False,
                name="vault_of_the_host_is_one",
            )
        ]

    def __str__(self) -> str:
        return str(self.id)


class SecretRows(models.QuerySet["Secret"]):
    """Querysets in the words of the domain."""

    def of(self, environment_uid: UUID) -> Self:
        """The Secrets of one Environment, by creation; never those of the host."""
        return self.filter(vault__environment_uid=environment_uid).order_by("created_at", "id")


class Secret(models.Model):
    """One sealed value. ``nonce`` changes with every write of the value, and with nothing else."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    vault = models.ForeignKey(Vault, models.DO_NOTHING, db_constraint=False, db_index=False)
    name = models.TextField(db_collation="C")
    type = models.TextField()
    binding = models.JSONField()
    header_names = models.JSONField(null=True)
    kek_id = models.TextField(db_collation="C")
    nonce = models.BinaryField()
    wrapped_dek = models.BinaryField()
    ciphertext = models.BinaryField()
    created_at = models.DateTimeField()
    rotated_at = models.DateTimeField(null=True)

    objects = SecretRows.as_manager()

    class Meta:
        db_table = "vault_secret"
        constraints = [
            models.UniqueConstraint(fields=["vault", "name"], name="secret_name_is_unique_in_its_vault"),
            models.CheckConstraint(condition=Q(type__in=SECRET_TYPES), name="secret_type_is_known"),
            models.CheckConstraint(
                condition=Q(type="headers", header_names__isnull=False)
                | (~Q(type="headers") & Q(header_names__isnull=True)),
                name="secret_header_names_of_headers",
            ),
            models.CheckConstraint(
                condition=Q(Exact(Length("nonce"), 12))
                & Q(Exact(Length("wrapped_dek"), 60))
                & Q(GreaterThan(Length("ciphertext"), 16))
                & Q(Exact(Length("kek_id"), 64)),
                name="secret_is_sealed",
            ),
        ]
        indexes = [models.Index(fields=["kek_id", "id"], name="secret_by_key")]

    def __str__(self) -> str:
        return f"{self.name} ({self.type})"

    @property
    def place(self) -> Place:
        """What its ciphertext belongs to, from the row as it is."""
        return Place(self.vault_id, self.id, self.name, self.type, self.binding)

    @property
    def sealed(self) -> Sealed:
        """Its sealed value in parts."""
        return Sealed(self.kek_id, bytes(self.nonce), bytes(self.wrapped_dek), bytes(self.ciphertext))

    @sealed.setter
    def sealed(self, sealed: Sealed) -> None:
        self.kek_id, self.nonce = sealed.kek_id, sealed.nonce
        self.wrapped_dek, self.ciphertext = sealed.wrapped_dek, sealed.ciphertext

    @property
    def bound(self) -> Bound:
        """As far as clashes go."""
        return Bound(self.name, self.type, self.binding, tuple(self.header_names or ()))


class VaultAudit(models.Model):
    """One line of the audit, in the order it was written."""

    ord = models.BigAutoField(primary_key=True)
    id = models.UUIDField(unique=True, default=uuid.uuid4)
    at = models.DateTimeField()
    actor = models.TextField()
    action = models.TextField()
    vault_id = models.UUIDField(null=True)
    credential_id = models.UUIDField(null=True)
    name = models.TextField(null=True)  # noqa: DJ001 NULL says that it does not apply
    environment_id = models.TextField(null=True, db_collation="C")  # noqa: DJ001
    session_id = models.TextField(null=True)  # noqa: DJ001
    target = models.TextField(null=True)  # noqa: DJ001
    request_id = models.TextField(null=True)  # noqa: DJ001
    outcome = models.TextField()

    class Meta:
        db_table = "vault_audit"
        constraints = [
            models.CheckConstraint(condition=Q(action__in=ACTIONS), name="audit_action_is_known"),
            models.CheckConstraint(condition=Q(outcome__in=OUTCOMES), name="audit_outcome_is_known"),
        ]
        indexes = [
            models.Index(fields=["environment_id", "ord"], name="audit_by_environment"),
            models.Index(fields=["vault_id", "ord"], name="audit_by_vault"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.actor} {self.action} {self.name or ''} {self.outcome}"


class GateAuthority(models.Model):
    """The authority of the egress gate: one row, see :mod:`vault.services.authority`."""

    only = models.BooleanField(primary_key=True, default=True)
    certificate = models.TextField()
    sealed_key = models.BinaryField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "vault_gate_authority"
        constraints = [models.CheckConstraint(condition=Q(only=True), name="gate_authority_is_one")]

    def __str__(self) -> str:
        return "egress gate"
