"""Operators' view of the record: events to read, the outbox with its parked rows first."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest

from nylorun.http.admin import ReadOnlyAdmin
from nylorun.record import outbox
from nylorun.record.models import Event, OutboxMessage


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    """What happened."""

    list_display = ["stream", "seq", "noun", "type", "time"]
    list_filter = ["noun", "type"]
    search_fields = ["stream"]
    ordering = ["-id"]
    show_full_result_count = False


@admin.register(OutboxMessage)
class OutboxAdmin(ReadOnlyAdmin):
    """What must still happen."""

    list_display = ["dedupe_key", "topic", "due_at", "attempts", "parked_at", "last_error"]
    list_filter = ["topic"]
    search_fields = ["dedupe_key"]
    actions = ["retry_now"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[OutboxMessage]:
        """Parked rows first."""
        return super().get_queryset(request).order_by(F("parked_at").desc(nulls_last=True), "due_at")

    def get_actions(self, request: HttpRequest) -> Any:
        """No actions for those who may only look."""
        allowed = request.user.has_perm("record.change_outboxmessage")
        return super().get_actions(request) if allowed else {}

    @admin.action(description="Try again now", permissions=["view"])
    def retry_now(self, request: HttpRequest, queryset: QuerySet[OutboxMessage]) -> None:
        """Unpark and hand over."""
        for key in queryset.values_list("dedupe_key", flat=True):
            outbox.retry_now(key)
            self.message_user(request, f"{key} was sent again.")
