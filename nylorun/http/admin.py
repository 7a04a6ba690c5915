"""What every admin page of this project has in common: it shows rows, and it changes them through services only.

* :class:`ServiceAdmin`: a form's save calls a service, which opens its own transaction; Django's own one around the
  page is taken away, since transactions do not nest here.
* :class:`ReadOnlyAdmin`: rows to look at. Its actions may still call services.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_protect


class ServiceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # the stub is generic, the class at run time is not
    """Forms whose ``save_model`` calls a service."""

    @method_decorator(csrf_protect)
    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Django's page without its transaction."""
        response: HttpResponse = self._changeform_view(request, object_id, form_url, extra_context)  # type: ignore[attr-defined]
        return response


class ReadOnlyAdmin(ServiceAdmin):
    """No adding, no editing, no deleting."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Rows are made by services."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows are changed by services."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows are deleted by services."""
        return False
