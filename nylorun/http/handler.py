"""The one translator from exceptions to answers: nobody else builds an error body.

* :class:`~nylorun.kernel.errors.ApiError` becomes its status, code, message and details, with the headers that belong
  to the status (``Retry-After``, ``Allow``, ``WWW-Authenticate``, ``Content-Range``).
* A database that does not answer is 503 ``service_unavailable`` wherever it is met.
* Everything else is a bug: 500 with a fixed text; the cause is logged once, with the request's id.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import psycopg
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError

from nylorun.kernel.errors import (
    ApiError,
    Fault,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RangeNotSatisfiable,
    RequestRejected,
    ServiceUnavailable,
)

log = logging.getLogger(__name__)

JSON = "application/json; charset=utf-8"
_LINKS = "/v1/artifact-links/"
OPAQUE = b'{"status":"rejected","code":"not_found","message":"Not found"}'
_DATABASE_IS_AWAY = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)


def answer_for(error: Exception, context: dict[str, Any] | None = None) -> HttpResponse:
    """The answer to a request that ended in ``error``; signature of Django REST framework's exception handlers."""
    request = (context or {}).get("request")
    refusal = as_api_error(error)
    if isinstance(refusal, Fault):
        _log(error, refusal, request)
    return response_to(refusal)


def as_api_error(error: BaseException) -> ApiError:
    """``error`` in the words of this interface."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Http404):
        return NotFound()
    if isinstance(error, _DATABASE_IS_AWAY):
        return ServiceUnavailable()
    if isinstance(error, UnreadablePostError):
        return InvalidRequest([{"path": "", "message": "could not be read to its end"}])
    if isinstance(error, SuspiciousOperation | RequestDataTooBig):
        return RequestRejected("The request is malformed.")
    return InternalError()


def response_to(error: ApiError) -> HttpResponse:
    """Body and headers of one error."""
    body = OPAQUE if isinstance(error, NotFound) else _body(error)
    response = HttpResponse(body, status=error.status, content_type=JSON)
    response.headers["Content-Length"] = str(len(body))
    response._has_been_logged = True  # type: ignore[attr-defined]  # Django would log every refusal once more
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
    if isinstance(error, MethodNotAllowed):
        response.headers["Allow"] = ", ".join(error.allowed)
    if isinstance(error, RangeNotSatisfiable):
        response.headers["Content-Range"] = f"bytes */{error.size}"
    return response


def unknown_route(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
    """The last route, and Django's ``handler404``: the opaque 404."""
    return response_to(NotFound())


def broken_request(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
    """Django's ``handler400``: what it refuses before a view is asked."""
    return response_to(RequestRejected("The request is malformed."))


def broken_server(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
    """Django's ``handler500``; the cause was logged by Django."""
    return response_to(InternalError())


def _body(error: ApiError) -> bytes:
    members: dict[str, Any] = {"status": "rejected", "code": error.code, "message": error.message}
    if error.details:
        members["details"] = error.details
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _log(error: Exception, fault: Fault, request: Any) -> None:
    request_id = getattr(request, "request_id", "-")
    where = f"{getattr(request, 'method', '-')} {_loggable(getattr(request, 'path', '-'))}"
    if isinstance(fault, InternalError):
        log.error("request %s: %s failed", request_id, where, exc_info=error)
    else:
        cause = error.__cause__ or error
        log.warning("request %s: %s answered %s: %s", request_id, where, fault.code, type(cause).__name__)


def _loggable(path: str) -> str:
    """The path for the log: a link's token is a credential, so only its route is named."""
    return f"{_LINKS}<token>" if path.startswith(_LINKS) else path
