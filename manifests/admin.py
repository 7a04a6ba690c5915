"""The library in the admin: read only; the one action deletes unused Manifests through the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import Count, Max, QuerySet
from django.http import HttpRequest

from manifests.errors import ManifestInUse
from manifests.models import Artifact, ArtifactVersion, DefinitionFile, Manifest, ManifestVersion
from manifests.services.remove import remove_manifest
from nylorun.http.admin import ReadOnlyAdmin

if TYPE_CHECKING:  # Django's class takes no type arguments when it runs
    VersionRows = admin.TabularInline[ManifestVersion, Manifest]
    ArtifactVersionRows = admin.TabularInline[ArtifactVersion, Artifact]
else:
    VersionRows = ArtifactVersionRows = admin.TabularInline


class VersionsInline(VersionRows):
    """The versions of one name, newest first."""

    model = ManifestVersion
    fields = ("number", "hash", "saved_by", "created_at", "environments", "body")
    readonly_fields = fields
    ordering = ("-number",)
    extra = 0
    max_num = 0
    can_delete = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[ManifestVersion]:
        """With the number of Environments made from each version."""
        return super().get_queryset(request).annotate(used=Count("environments"))

    @admin.display(description="environments")
    def environments(self, version: Any) -> int:
        """How many Environments were made from this version."""
        return int(version.used)


@admin.register(Manifest)
class ManifestAdmin(ReadOnlyAdmin):
    """Names with their latest version and use."""

    list_display = ("name", "latest", "environments")
    search_fields = ("name",)
    ordering = ("name",)
    inlines = (VersionsInline,)
    actions = ("delete_unused",)
    fields = ("name",)
    list_per_page = 50
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Manifest]:
        """With the latest number and the Environments over all versions."""
        rows: QuerySet[Manifest] = super().get_queryset(request)
        return rows.annotate(latest_number=Max("versions__number"), used=Count("versions__environments"))

    @admin.display(description="latest version", ordering="latest_number")
    def latest(self, manifest: Any) -> int:
        """The newest number."""
        return int(manifest.latest_number)

    @admin.display(description="environments", ordering="used")
    def environments(self, manifest: Any) -> int:
        """Environments made from any version, those being deleted too."""
        return int(manifest.used)

    @admin.action(description="Delete Manifests that no Environment was made from", permissions=["remove"])
    def delete_unused(self, request: HttpRequest, rows: QuerySet[Manifest]) -> None:
        """One service call a name; a name in use stays and says why."""
        for name in rows.order_by("name").values_list("name", flat=True):
            try:
                versions = remove_manifest(name)
            except ManifestInUse as refusal:
                self.message_user(request, refusal.message, messages.WARNING)
            else:
                self.message_user(request, f"Manifest {name} is deleted: {versions} versions.", messages.SUCCESS)

    def has_remove_permission(self, request: HttpRequest) -> bool:
        """The permission of the action: the one that deleting rows would need."""
        user: Any = request.user
        return bool(user.has_perm("manifests.delete_manifest"))


@admin.register(DefinitionFile)
class DefinitionFileAdmin(ReadOnlyAdmin):
    """Hashes and sizes; the content is not shown."""

    list_display = ("sha256", "size", "created_at")
    search_fields = ("=sha256",)
    ordering = ("-created_at",)
    list_per_page = 50
    show_full_result_count = False


class ArtifactVersionsInline(ArtifactVersionRows):
    """The versions of one artifact, newest first."""

    model = ArtifactVersion
    fields = ("number", "size", "file_count", "sha256", "cause", "actor", "operation_id", "created_at")
    readonly_fields = fields
    ordering = ("-number",)
    extra = 0
    max_num = 0
    can_delete = False


@admin.register(Artifact)
class ArtifactAdmin(ReadOnlyAdmin):
    """Artifacts of the Tenant, of Sessions and of disks, with their versions; the content is not shown."""

    list_display = ("id", "name", "kind", "latest_version", "session_id", "environment_uid", "orphaned", "created_at")
    list_filter = ("kind", "orphaned", ("environment_uid", admin.EmptyFieldListFilter))
    search_fields = ("=id", "name", "=session_id")
    ordering = ("-created_at",)
    inlines = (ArtifactVersionsInline,)
    list_per_page = 50
    show_full_result_count = False
