"""Operators' view of the vault: which Secrets are there and who touched them. No value, sealed or not, is on a page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from nylorun.http.admin import ReadOnlyAdmin
from vault import keys
from vault.models import Secret, Vault, VaultAudit

_UNSHOWN = ("nonce", "wrapped_dek", "ciphertext")


@admin.register(Vault)
class VaultAdmin(ReadOnlyAdmin):
    """One Vault per Environment, and the host's: names and types of what is set."""

    list_display = ["id", "environment_uid", "secrets", "created_at"]
    search_fields = ["id", "environment_uid"]
    ordering = ["-created_at"]
    list_per_page = 50
    show_full_result_count = False
    fields = ["id", "environment_uid", "created_at", "names"]
    readonly_fields = ["names"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Vault]:
        """With the number of Secrets."""
        rows: QuerySet[Vault] = super().get_queryset(request).annotate(number=Count("secret"))
        return rows

    @admin.display(description="secrets")
    def secrets(self, row: Any) -> int:
        """How many are set."""
        return int(row.number)

    @admin.display(description="set")
    def names(self, row: Vault) -> SafeString:
        """Name, type and whether its key is the active one."""
        active = keys.active_kek()
        found = Secret.objects.filter(vault=row).order_by("created_at", "id").defer(*_UNSHOWN)
        lines = [(secret.name, secret.type, "" if secret.kek_id == active else "(rotate needed)") for secret in found]
        return format_html_join("", "{} {} {}<br>", lines)


class RotateNeeded(admin.SimpleListFilter):
    """Secrets that another key than the active one wraps."""

    title = "rotate needed"
    parameter_name = "rotate"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Yes or no."""
        return [("yes", "Yes"), ("no", "No")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Secret]) -> QuerySet[Secret]:
        """By the id of their key."""
        if self.value() == "yes":
            return queryset.exclude(kek_id=keys.active_kek())
        return queryset.filter(kek_id=keys.active_kek()) if self.value() == "no" else queryset


@admin.register(Secret)
class SecretAdmin(ReadOnlyAdmin):
    """Every Secret by name and type. Its sealed columns are not even read."""

    list_display = ["name", "type", "vault_id", "rotate_needed", "created_at", "rotated_at"]
    list_filter = ["type", RotateNeeded]
    search_fields = ["name", "vault__id", "vault__environment_uid"]
    ordering = ["-created_at"]
    list_per_page = 50
    show_full_result_count = False
    fields = ["id", "vault_id", "name", "type", "binding", "header_names", "rotate_needed", "created_at", "rotated_at"]
    readonly_fields = ["vault_id", "rotate_needed"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Secret]:
        """Without the sealed columns, but for the id of the key."""
        return super().get_queryset(request).defer(*_UNSHOWN)

    @admin.display(boolean=True, description="rotate needed")
    def rotate_needed(self, row: Secret) -> bool:
        """Whether ``manage.py rotate_keyring`` has not met it since the active key is active."""
        return row.kek_id != keys.active_kek()


@admin.register(VaultAudit)
class VaultAuditAdmin(ReadOnlyAdmin):
    """Who made, changed, removed, used or copied which Secret; newest first."""

    list_display = ["at", "actor", "action", "outcome", "name", "environment_id", "target", "session_id", "request_id"]
    list_filter = ["action", "outcome"]
    search_fields = ["actor", "name", "environment_id", "target", "request_id"]
    ordering = ["-ord"]
    list_per_page = 100
    show_full_result_count = False
