"""Every route of the process. Patterns match the raw, undecoded path (:mod:`nylorun.http.paths`)."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, re_path

import nylorun.http.paths  # noqa: F401 registers the converters
from nylorun.http.handler import unknown_route

urlpatterns = [
    path("", include("nylorun.http.urls")),
    path("", include("nylorun.access.urls")),
    path("", include("manifests.api.urls")),
    path("", include("environments.api.urls")),
    path("admin/", admin.site.urls),
    re_path("", unknown_route),
]

handler400 = "nylorun.http.handler.broken_request"
handler404 = "nylorun.http.handler.unknown_route"
handler500 = "nylorun.http.handler.broken_server"
