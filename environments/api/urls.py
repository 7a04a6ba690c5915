"""Routes of the Environments. Paths are matched undecoded: an id holds its ``/`` percent-encoded."""

from __future__ import annotations

from django.urls import path

from environments.api.disks import ForkView, RestoreView, SnapshotsView, SnapshotView
from environments.api.engine import JoinView, RenewView
from environments.api.environments import (
    EnvironmentsView,
    EnvironmentView,
    EventsView,
    ResetView,
    StopView,
    WakeView,
)
from environments.api.files import FilesRootView, FilesView
from environments.api.operations import CancelView, OperationsView, OperationView
from environments.api.secrets import SecretsView, SecretView
from environments.api.tools import ToolView
from environments.tools.machines import way_of_copies
from nylorun.http.health import add_note

add_note("copies", way_of_copies)

urlpatterns = [
    path("v1/environments", EnvironmentsView.as_view()),
    path("v1/environments/<raw:id>", EnvironmentView.as_view()),
    path("v1/environments/<raw:id>/stop", StopView.as_view()),
    path("v1/environments/<raw:id>/reset", ResetView.as_view()),
    path("v1/environments/<raw:id>/wake", WakeView.as_view()),
    path("v1/environments/<raw:id>/fork", ForkView.as_view()),
    path("v1/environments/<raw:id>/snapshots", SnapshotsView.as_view()),
    path("v1/environments/<raw:id>/snapshots/<raw:version>", SnapshotView.as_view()),
    path("v1/environments/<raw:id>/restore", RestoreView.as_view()),
    path("v1/environments/<raw:id>/operations", OperationsView.as_view()),
    path("v1/environments/<raw:id>/events", EventsView.as_view()),
    path("v1/environments/<raw:id>/secrets", SecretsView.as_view()),
    path("v1/environments/<raw:id>/secrets/<raw:name>", SecretView.as_view()),
    path("v1/environments/<raw:id>/tools/<raw:tool>", ToolView.as_view()),
    path("v1/environments/<raw:id>/files", FilesRootView.as_view()),
    path("v1/environments/<raw:id>/files/<tail:path>", FilesView.as_view()),
    path("v1/operations/<raw:id>", OperationView.as_view()),
    path("v1/operations/<raw:id>/cancel", CancelView.as_view()),
    path("v1/engine/join", JoinView.as_view()),
    path("v1/engine/renew", RenewView.as_view()),
]
