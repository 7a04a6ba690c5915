"""Disks over HTTP: snapshots, restore, and forks with a copy of the disk."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from environments.api.operations import OperationAnswers
from environments.api.shapes import ForkBody, Nothing, RestoreBody
from environments.api.views import DiskVersion, EnvironmentView, Forked, Snapshot, Snapshots, VersionDeleted
from environments.services import forks, restores, snapshots, versions
from environments.tools.machines import pods_available
from environments.tools.whole import require_whole
from manifests.models import ArtifactVersion
from nylorun import config
from nylorun.http.openapi import describes
from nylorun.http.paging import Listing, Position
from nylorun.http.paths import encoded
from nylorun.http.shape import Paging
from nylorun.http.view import ApiView
from nylorun.http.words import READ, WRITE
from nylorun.kernel.errors import InvalidRequest

NUMBER_MAX = 2**31 - 1
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")


class SnapshotsView(OperationAnswers):
    """The Disk versions of one Environment."""

    word = WRITE
    words = {"GET": READ}

    @describes(query=Paging, answers={200: Snapshots}, summary="List the Disk versions of an Environment")
    def get(self, request: Request, id: str) -> HttpResponseBase:
        """Newest first; ``null`` and nothing while there is no version yet."""
        environment_id = self.environment_id()
        query = self.query(Paging)
        artifact = versions.disk_of(environment_id)
        known = {"artifactId": artifact and artifact.id, "latestVersion": artifact and artifact.latest_version}

        def read(after: Position | None, count: int) -> list[ArtifactVersion]:
            return [] if artifact is None else versions.page(artifact, int(after[0]) if after else None, count)

        listing = Listing(read, position=lambda version: [version.number])
        return self.answer_list("versions", listing, query, versions.present_version, beside=known)

    @describes(body=Nothing, answers={200: Snapshot, 201: Snapshot}, summary="Copy the disk into a new Disk version")
    def post(self, request: Request, id: str) -> HttpResponse:
        """201 with a new version, 200 when the disk is as the latest one."""
        environment_id = self.environment_id()
        self.refuse_key(self.body(Nothing))
        operation = snapshots.request(environment_id, actor=self.caller.actor, pods=pods_available())
        return self.answer_end(operation)


class SnapshotView(ApiView):
    """One Disk version."""

    word = WRITE
    words = {"GET": READ}

    @describes(answers={200: DiskVersion}, summary="Read a Disk version")
    def get(self, request: Request, id: str, version: str) -> HttpResponse:
        """The version of this number."""
        return self.answer(versions.version_view(self.environment_id(), self._number()))

    @describes(answers={200: VersionDeleted}, summary="Delete a Disk version")
    def delete(self, request: Request, id: str, version: str) -> HttpResponse:
        """Its content goes for every reader at once."""
        environment_id, number = self.environment_id(), self._number()
        return self.answer({"version": number, "deleted": versions.delete_version(environment_id, number)})

    def _number(self) -> int:
        text = self.segment("version")
        if _NUMBER.fullmatch(text) is None or int(text) > NUMBER_MAX:
            message = f"must be a version number from 1 to {NUMBER_MAX}"
            raise InvalidRequest([{"path": "{version}", "message": message}])
        return int(text)


class RestoreView(OperationAnswers):
    """Back to a Disk version."""

    word = WRITE

    @describes(body=RestoreBody, answers={200: EnvironmentView}, summary="Make the disk a Disk version again")
    def post(self, request: Request, id: str) -> HttpResponse:
        """A pod gets a new volume, a workspace is swapped; files and setup do not run again."""
        environment_id = self.environment_id()
        body = self.body(RestoreBody)
        self.refuse_key(body)
        root = versions.root_to_restore(environment_id, body.version)
        if root is not None:
            require_whole(root)
        operation = restores.request(
            environment_id,
            body.version,
            actor=self.caller.actor,
            pods=pods_available(),
            tenant=config.current().tenant_id,
        )
        return self.answer_end(operation)


class ForkView(OperationAnswers):
    """A new Environment beside this one."""

    word = WRITE

    @describes(body=ForkBody, answers={200: Forked, 201: Forked}, summary="Fork an Environment onto a Manifest version")
    def post(self, request: Request, id: str) -> HttpResponse:
        """The new Environment and what was carried over; with ``dryRun`` the plan only."""
        source = self.environment_id()
        body = self.body(ForkBody)
        self.refuse_key(body)
        command = body.command(source, self.request_id)
        if body.dry_run:
            return self.answer({"dryRun": True, "plan": present_plan(forks.plan(command, caller=self.caller))})
        operation = forks.request(command, caller=self.caller, pods=pods_available())
        return self.answer_end(operation, headers={"Location": f"/v1/environments/{encoded(command.id)}"})


def present_plan(plan: forks.Plan) -> dict[str, Any]:
    """A plan as callers see it."""
    return asdict(plan)
