"""What surrounds every request, and what surrounds the admin alone.

* :class:`RequestFrame` gives each request its id and each answer ``X-Request-Id`` and ``Nylorun-Protocol``; it takes
  the body off an answer to ``HEAD`` and counts and times the request.
* :class:`AdminOnly` puts ``settings.ADMIN_MIDDLEWARE`` around ``/admin/``: sessions, CSRF and static files cost an API
  request nothing, and an API request can never meet them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.module_loading import import_string

from nylorun.http import metrics, protocol
from nylorun.http.handler import answer_for
from nylorun.kernel.clock import monotonic

GetResponse = Callable[[HttpRequest], HttpResponseBase]

ADMIN = "/admin/"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestFrame:
    """Id, protocol and measurement of each request."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        began = monotonic()
        sent = request.META.get("HTTP_X_REQUEST_ID", "")
        request_id = sent if _REQUEST_ID.fullmatch(sent) else str(uuid.uuid4())
        request.request_id = request_id  # type: ignore[attr-defined]  # read by the views and the translator
        try:
            response = self.get_response(request)
        except Exception as error:  # noqa: BLE001 whatever it is, the answer has one form
            response = answer_for(error, {"request": request})
        response.headers["X-Request-Id"] = request_id
        response.headers["Nylorun-Protocol"] = str(protocol.served(request.META.get("HTTP_NYLORUN_PROTOCOL")))
        if request.method == "HEAD":
            _without_body(response)
        metrics.count(request, response.status_code, monotonic() - began)
        return response


class AdminOnly:
    """``settings.ADMIN_MIDDLEWARE`` for requests below ``/admin/``, nothing for the others."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._around: list[Any] = []
        inner: Any = get_response
        for name in reversed(settings.ADMIN_MIDDLEWARE):
            inner = import_string(name)(inner)
            self._around.insert(0, inner)
        self._admin: GetResponse = inner

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        chain = self._admin if request.path_info.startswith(ADMIN) else self.get_response
        return chain(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        """Django asks only the outer middleware: hand the question on, in order, for the admin (CSRF lives here)."""
        for middleware in self._asked("process_view", request):
            response: HttpResponseBase | None = middleware.process_view(request, view, args, kwargs)
            if response is not None:
                return response
        return None

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        """The same for template responses, innermost first."""
        for middleware in reversed(self._asked("process_template_response", request)):
            response = middleware.process_template_response(request, response)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        """The same for exceptions, innermost first."""
        for middleware in reversed(self._asked("process_exception", request)):
            response: HttpResponseBase | None = middleware.process_exception(request, exception)
            if response is not None:
                return response
        return None

    def _asked(self, hook: str, request: HttpRequest) -> list[Any]:
        if not request.path_info.startswith(ADMIN):
            return []
        return [middleware for middleware in self._around if hasattr(middleware, hook)]


def _without_body(response: HttpResponseBase) -> None:
    """``HEAD`` is answered as ``GET`` with the same headers and no bytes."""
    if isinstance(response, StreamingHttpResponse):
        response.streaming_content = ()
    elif isinstance(response, HttpResponse):
        response.headers.setdefault("Content-Length", str(len(response.content)))
        response.content = b""
