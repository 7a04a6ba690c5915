"""Routes of the frame itself."""

from __future__ import annotations

from django.urls import path

from nylorun.http.views import DocsView, HealthView, MetricsView, OpenApiView, ReadyView

urlpatterns = [
    path("healthz", HealthView.as_view(), name="healthz"),
    path("readyz", ReadyView.as_view(), name="readyz"),
    path("metrics", MetricsView.as_view(), name="metrics"),
    path("v1/openapi.json", OpenApiView.as_view(), name="openapi"),
    path("v1/docs", DocsView.as_view(), name="docs"),
]
