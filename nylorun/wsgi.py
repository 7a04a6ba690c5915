"""The WSGI application. Routes see the path as it was sent.

WSGI servers decode the path, which turns an id with an encoded ``/`` into two segments. gunicorn also passes the
request target untouched (``RAW_URI``); everything but the admin is routed on that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from django.core.wsgi import get_wsgi_application

from nylorun.access import keyring

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nylorun.settings.prod")

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_ADMIN = "/admin/"


def raw_path(environ: dict[str, Any]) -> str:
    """The undecoded path of the request target; the decoded one when the server gives no target."""
    target = environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""
    if "://" in target.split("/", 1)[0] + target[:8]:
        target = "/" + target.split("://", 1)[1].partition("/")[2]
    path = str(target).partition("?")[0].partition("#")[0]
    return path if path.startswith("/") else str(environ.get("PATH_INFO", "/"))


def on_raw_paths(inner: Application) -> Application:
    """``inner``, with the undecoded path in ``PATH_INFO`` outside the admin."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not str(environ.get("PATH_INFO", "")).startswith(_ADMIN):
            environ["PATH_INFO"] = raw_path(environ)
        return inner(environ, start_response)

    return application


application = on_raw_paths(get_wsgi_application())
keyring.current()  # a process without a usable keyring does not start
