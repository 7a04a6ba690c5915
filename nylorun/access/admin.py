"""Operators' view of applications: made and revoked, never edited; a key is shown once, on the page that made it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from nylorun.access.models import Principal, SigningKey
from nylorun.access.principals import APPLICATION_ID, create_application, revoke_application
from nylorun.http.admin import ReadOnlyAdmin, ServiceAdmin
from nylorun.kernel.errors import Refusal


class ApplicationForm(forms.ModelForm):  # type: ignore[type-arg]  # the stub is generic, the class at run time is not
    """The one thing an operator chooses: the id."""

    id = forms.RegexField(rf"^{APPLICATION_ID.pattern}\Z", label="Id", max_length=64)

    class Meta:
        model = Principal
        fields = ["id"]


@admin.register(Principal)
class PrincipalAdmin(ServiceAdmin):
    """Applications: id and times; no hash, no key."""

    form = ApplicationForm
    list_display = ["id", "created_at", "revoked_at"]
    fields = ["id", "created_at", "revoked_at"]
    readonly_fields = ["created_at", "revoked_at"]
    search_fields = ["id"]
    actions = ["revoke"]

    def get_fields(self, request: HttpRequest, obj: Principal | None = None) -> Any:
        """A new one has no times yet."""
        return ["id"] if obj is None else ["id", "created_at", "revoked_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Principal | None = None) -> list[str]:
        """Nothing of an existing one is edited."""
        return [] if obj is None else ["id", "created_at", "revoked_at"]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Audit rows name it: it is revoked, not deleted."""
        return False

    def save_model(self, request: HttpRequest, obj: Principal, form: Any, change: bool) -> None:
        """Make it through the service; the key lives in this request only."""
        if change:
            return
        request.new_key = create_application(obj.id)  # type: ignore[attr-defined]  # read by response_add
        obj.refresh_from_db()

    def response_add(self, request: HttpRequest, obj: Principal, post_url_continue: str | None = None) -> HttpResponse:
        """The page that shows the key, once; nothing stores it."""
        context = {
            **self.admin_site.each_context(request),
            "title": f"Key of {obj.id}",
            "application": obj,
            "key": request.new_key,  # type: ignore[attr-defined]
            "opts": self.opts,
        }
        response = TemplateResponse(request, "access/key_once.html", context)
        response.headers["Cache-Control"] = "no-store"
        return response

    @admin.action(description="Revoke the keys of the selected applications", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Principal]) -> None:
        """End their keys through the service."""
        for principal in queryset:
            try:
                revoke_application(principal.id)
            except Refusal as refusal:
                self.message_user(request, f"{principal.id}: {refusal.message}", messages.ERROR)
            else:
                self.message_user(request, f"{principal.id} is revoked.")


@admin.register(SigningKey)
class SigningKeyAdmin(ReadOnlyAdmin):
    """The keys that sign tokens: public facts, read-only."""

    list_display = ["kid", "state", "created_at", "retired_at"]
    fields = ["kid", "state", "public_jwk", "created_at", "retired_at"]
