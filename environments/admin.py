"""Operators' view of Environments: lists to read, and actions that call the same services as the API.

Nothing here edits a row. An action that is refused says why, with the words the API would use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from environments.models import Effect, Environment, Operation
from environments.services.delete import delete_environment
from environments.services.dispatch import hand_out
from environments.services.operations import cancel
from environments.services.reset import reset_environment
from environments.services.stop import stop_environment
from environments.services.sweep import ask_for_look
from environments.tools.machines import pods_available, way_of_copies
from nylorun import config
from nylorun.http.admin import ReadOnlyAdmin
from nylorun.kernel.errors import ApiError
from nylorun.record.events import read

LAST_EVENTS = 20


class ActingAdmin(ReadOnlyAdmin):
    """A list whose actions call services, for operators who may change Environments."""

    def has_action_permission(self, request: HttpRequest) -> bool:
        """Operators who may change Environments may act on them."""
        return bool(request.user.has_perm("environments.change_environment"))

    def get_actions(self, request: HttpRequest) -> Any:
        """No actions for those who may only look."""
        return super().get_actions(request) if self.has_action_permission(request) else {}

    def _each(self, request: HttpRequest, queryset: QuerySet[Any], act: Callable[[str], object], done: str) -> None:
        for id in queryset.values_list("pk", flat=True):
            try:
                act(id)
            except ApiError as refusal:
                self.message_user(request, f"{id}: {refusal.message}", messages.ERROR)
            else:
                self.message_user(request, f"{id} {done}.")


@admin.register(Environment)
class EnvironmentAdmin(ActingAdmin):
    """Every Environment, those being deleted too."""

    list_display = ["id", "kind", "desired", "observed", "reason_line", "manifest_name", "last_used_at", "updated_at"]
    list_filter = ["kind", "observed", "desired", "manifest_name"]
    search_fields = ["id", "k8s_name", "labels"]
    ordering = ["id"]
    list_per_page = 50
    show_full_result_count = False
    actions = ["stop", "reset", "delete_now", "delete_with_force", "look_again"]
    fields = [
        "id", "uid", "kind", "noun", "labels", "owner_user_id", "recipe", "applied", "manifest_name",
        "manifest_version_number", "manifest_hash", "desired", "observed", "reason", "driver", "k8s_name", "volume_gen",
        "rev", "host_epoch", "pod_uid", "volume_id", "image_digest", "retiring", "engine_address", "engine_seen_at",
        "unenforced", "disk_op", "disk_seed", "setup_done_gen", "started_at", "idle_at", "last_active_at",
        "last_used_at", "delete_check_at", "created_at", "updated_at", "copies",
        "last_events",
    ]  # fmt: skip
    readonly_fields = ["copies", "last_events"]

    @admin.display(description="reason")
    def reason_line(self, row: Environment) -> str:
        """The first line of why it failed or is lost."""
        return (row.reason or "").splitlines()[0][:120] if row.reason else ""

    @admin.display(description="copies of disks")
    def copies(self, row: Environment) -> str:
        """How a fork or restore gets its bytes on this machine."""
        return way_of_copies() if row.kind == "pod" else "portable"

    @admin.display(description="last events")
    def last_events(self, row: Environment) -> SafeString:
        """The end of its stream."""
        found = read(row.id, tenant=config.current().tenant_id, last=LAST_EVENTS)
        lines = [(event["seq"], event["time"], event["type"], event["payload"]) for event in found]
        return format_html_join("", "{} {} {} {}<br>", lines)

    @admin.action(description="Stop: suspend the pod, keep its volume", permissions=["view"])
    def stop(self, request: HttpRequest, queryset: QuerySet[Environment]) -> None:
        """As ``POST …/stop``."""
        self._each(request, queryset, stop_environment, "is being suspended")

    @admin.action(description="Reset: new pod on a new, empty volume", permissions=["view"])
    def reset(self, request: HttpRequest, queryset: QuerySet[Environment]) -> None:
        """As ``POST …/reset``."""
        pods, tenant = pods_available(), config.current().tenant_id
        self._each(
            request, queryset, lambda id: reset_environment(id, pods=pods, tenant=tenant), "starts with an empty disk"
        )

    @admin.action(description="Delete, unless it is in use", permissions=["view"])
    def delete_now(self, request: HttpRequest, queryset: QuerySet[Environment]) -> None:
        """As ``DELETE``."""
        self._each(request, queryset, lambda id: delete_environment(id, force=False), "is deleted")

    @admin.action(description="Delete with force: end what is in the way", permissions=["view"])
    def delete_with_force(self, request: HttpRequest, queryset: QuerySet[Environment]) -> None:
        """As ``DELETE …?force=true``."""
        self._each(request, queryset, lambda id: delete_environment(id, force=True), "is deleted")

    @admin.action(description="Try again: look at the machine now", permissions=["view"])
    def look_again(self, request: HttpRequest, queryset: QuerySet[Environment]) -> None:
        """A reconcile, for a pod that fails, is lost or is being deleted."""
        self._each(request, queryset, ask_for_look, "is looked at")


@admin.register(Operation)
class OperationAdmin(ActingAdmin):
    """Long work: what runs, how far it is, what failed and why."""

    list_display = [
        "id",
        "kind",
        "environment_id",
        "state",
        "attempt",
        "progress",
        "error_line",
        "created_at",
        "finished_at",
    ]
    list_filter = ["kind", "state"]
    search_fields = ["id", "environment_id"]
    ordering = ["-created_at"]
    actions = ["run_now", "cancel"]

    @admin.display(description="error")
    def error_line(self, operation: Operation) -> str:
        """Why it failed."""
        return str((operation.error or {}).get("message", ""))[:120]

    @admin.action(description="Run now: do not wait for the next attempt", permissions=["view"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Operation]) -> None:
        """Hand it out; one that runs or has ended stays as it is."""
        self._each(request, queryset, hand_out, "is handed out")

    @admin.action(description="Cancel", permissions=["view"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Operation]) -> None:
        """As ``POST /v1/operations/{id}/cancel``."""
        self._each(request, queryset, cancel, "is cancelled, or ends at its next step")


@admin.register(Effect)
class EffectAdmin(ReadOnlyAdmin):
    """Calls that run now; their answers are sealed and not shown."""

    list_display = ["id", "environment_id", "tool", "status", "lease_until", "started_at"]
    list_filter = ["status", "tool"]
    exclude = ["answer"]
    ordering = ["-started_at"]
