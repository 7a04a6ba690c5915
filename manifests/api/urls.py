"""Routes of the library. A Manifest has two names on the wire: one resource, two prefixes."""

from __future__ import annotations

from django.urls import URLPattern, path

from manifests.api.files import DefinitionFileView
from manifests.api.manifests import ManifestsView, ManifestView, SchemaView, VersionsView, VersionView
from manifests.api.sandbox import SandboxView


def _manifests(prefix: str) -> list[URLPattern]:
    return [
        path(f"v1/{prefix}", ManifestsView.as_view(), name=prefix),
        path(f"v1/{prefix}/<raw:name>", ManifestView.as_view(), name=f"{prefix}.one"),
        path(f"v1/{prefix}/<raw:name>/versions", VersionsView.as_view(), name=f"{prefix}.versions"),
        path(f"v1/{prefix}/<raw:name>/versions/<raw:number>", VersionView.as_view(), name=f"{prefix}.version"),
    ]


urlpatterns = [
    *_manifests("environment-manifests"),
    *_manifests("agent-manifests"),
    path("v1/schemas/environment-manifest.json", SchemaView.as_view(), name="manifest-schema"),
    path("v1/files/<raw:name>", DefinitionFileView.as_view(), name="definition-file"),
    path("v1/tenant/sandbox", SandboxView.as_view(), name="tenant.sandbox"),
]
