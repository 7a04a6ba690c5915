"""Rows of access: application keys, signing keys, and the canary that proves the keyring.

* A ``Principal`` keeps the SHA-256 of its key and nothing the key could be found from.
* At most one ``SigningKey`` is active; its private half is sealed (table and row id are its associated data).
* ``KeyringCanary`` is a sealed text anybody may know: a process that cannot open it has the wrong keyring or Tenant.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Principal(models.Model):
    """One application. ``revoked_at`` keeps the row, so that audit rows still name somebody."""

    id = models.TextField(primary_key=True, db_collation="C")
    token_hash = models.BinaryField(max_length=32, unique=True)
    created_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "access_principal"

    def __str__(self) -> str:
        return self.id


class SigningKeyState(models.TextChoices):
    """``active`` signs and verifies, ``retired`` verifies, ``revoked`` does neither."""

    ACTIVE = "active"
    RETIRED = "retired"
    REVOKED = "revoked"


class SigningKey(models.Model):
    """One P-256 pair; the public half as a JWK."""

    kid = models.TextField(primary_key=True, db_collation="C")
    state = models.TextField(choices=SigningKeyState.choices)
    public_jwk = models.JSONField()
    sealed_private = models.BinaryField()
    created_at = models.DateTimeField()
    retired_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "access_signing_key"
        constraints = [
            models.UniqueConstraint(fields=["state"], condition=Q(state="active"), name="signing_key_one_active"),
            models.CheckConstraint(
                condition=Q(state__in=["active", "retired", "revoked"]), name="signing_key_state_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kid} ({self.state})"


class KeyringCanary(models.Model):
    """The one row that every keyring of this installation opens."""

    only = models.BooleanField(primary_key=True, default=True)
    sealed = models.BinaryField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "access_keyring_canary"
        constraints = [models.CheckConstraint(condition=Q(only=True), name="keyring_canary_is_one")]

    def __str__(self) -> str:
        return "canary"
