"""Routes of the library. A Manifest has two names on the wire: one resource, two prefixes."""

from __future__ import annotations

from django.urls import URLPattern, path

from manifests import store
from manifests.api.artifacts import ArtifactOneView, ArtifactsView, ArtifactVersionsView
from manifests.api.contents import ContentView, DiffView, FolderFileView, LinksView, LinkView, TreeView, ZipView
from manifests.api.files import DefinitionFileView
from manifests.api.limits import ArtifactLimitsView
from manifests.api.manifests import ManifestsView, ManifestView, SchemaView, VersionsView, VersionView
from manifests.api.sandbox import SandboxView
from nylorun.http.health import add_check

add_check("blobs", store.check)
_VERSION = "v1/artifacts/<raw:id>/versions/<raw:number>"


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
    path("v1/artifacts", ArtifactsView.as_view(), name="artifacts"),
    path("v1/artifacts/<raw:id>", ArtifactOneView.as_view(), name="artifact"),
    path("v1/artifacts/<raw:id>/versions", ArtifactVersionsView.as_view(), name="artifact.versions"),
    path(f"{_VERSION}/content", ContentView.as_view(), name="artifact.content"),
    path(f"{_VERSION}/tree", TreeView.as_view(), name="artifact.tree"),
    path(f"{_VERSION}/files/<tail:path>", FolderFileView.as_view(), name="artifact.file"),
    path(f"{_VERSION}/diff", DiffView.as_view(), name="artifact.diff"),
    path(f"{_VERSION}/zip", ZipView.as_view(), name="artifact.zip"),
    path("v1/artifacts/<raw:id>/links", LinksView.as_view(), name="artifact.links"),
    path("v1/artifact-links/<raw:token>", LinkView.as_view(), name="artifact-link"),
    path("v1/tenant/artifacts", ArtifactLimitsView.as_view(), name="tenant.artifacts"),
    path("v1/tenant/sandbox", SandboxView.as_view(), name="tenant.sandbox"),
]
