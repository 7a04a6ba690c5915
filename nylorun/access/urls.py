"""Routes about the Caller itself, and the public half of the keys that sign."""

from __future__ import annotations

from django.urls import path

from nylorun.access.keyring import canary_fault
from nylorun.access.views import JwksView, MeView
from nylorun.http.health import add_database_check

add_database_check("keyring", canary_fault)

urlpatterns = [
    path("v1/me", MeView.as_view(), name="me"),
    path("v1/access/jwks", JwksView.as_view(), name="jwks"),
]
