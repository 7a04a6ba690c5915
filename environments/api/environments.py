"""Environments over HTTP: get-or-create, read, list, delete, stop, reset, wake, events."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from environments import tools
from environments.api.operations import OperationAnswers
from environments.api.shapes import DeleteQuery, EventsQuery, ListQuery, Nothing, PutEnvironmentBody
from environments.api.views import Deleted, Environments, Events
from environments.api.views import EnvironmentView as View
from environments.services.delete import delete_environment
from environments.services.put import put_environment
from environments.services.read import list_page, read_environment
from environments.services.reset import reset_environment
from environments.services.stop import stop_environment
from environments.tools.awaiting import await_end
from environments.tools.machines import pods_available
from nylorun import config
from nylorun.http.openapi import describes
from nylorun.http.paging import Listing, Position
from nylorun.http.paths import encoded
from nylorun.http.prefer import prefer_of
from nylorun.http.view import ApiView
from nylorun.http.words import READ, WRITE
from nylorun.record import events


class EnvironmentView(ApiView):
    """One Environment."""

    word = WRITE
    words = {"GET": READ}

    @describes(answers={200: View}, summary="Read an Environment")
    def get(self, request: Request, id: str) -> HttpResponse:
        """The view; not a use."""
        view, etag = read_environment(self.environment_id())
        return self.answer(view, headers={"ETag": etag})

    @describes(body=PutEnvironmentBody, answers={200: View, 201: View}, summary="Get or create an Environment")
    def put(self, request: Request, id: str) -> HttpResponse:
        """Make it, or find it as it is."""
        environment_id = self.environment_id()
        command = self.body(PutEnvironmentBody).command(environment_id, self.header("If-Match"))
        put = put_environment(command, caller=self.caller, pods=pods_available(), tenant=config.current().tenant_id)
        headers = {"ETag": put.etag}
        if put.created:
            headers["Location"] = f"/v1/environments/{encoded(environment_id)}"
        return self.answer(put.view, status=201 if put.created else 200, headers=headers)

    @describes(query=DeleteQuery, answers={200: Deleted}, summary="Delete an Environment")
    def delete(self, request: Request, id: str) -> HttpResponse:
        """Gone for every caller at once; its machine follows."""
        environment_id = self.environment_id()
        deleted = delete_environment(environment_id, force=self.query(DeleteQuery).force)
        return self.answer({"id": environment_id, "deleted": deleted})


class EnvironmentsView(ApiView):
    """The list."""

    word = READ

    @describes(query=ListQuery, answers={200: Environments}, summary="List Environments by label")
    def get(self, request: Request) -> HttpResponseBase:
        """Live, reachable rows with every label, by id."""
        query = self.query(ListQuery)
        labels = query.labels()

        def read(after: Position | None, count: int) -> list[dict[str, Any]]:
            return list_page(labels, str(after[0]) if after else "", count)

        listing = Listing(read, position=lambda view: [view["id"]], keep=lambda view: self.caller.reaches(view["id"]))
        return self.answer_list("environments", listing, query, lambda view: view)


class StopView(OperationAnswers):
    """Suspend a pod."""

    word = WRITE

    @describes(body=Nothing, answers={200: View}, summary="Suspend a pod and keep its volume")
    def post(self, request: Request, id: str) -> HttpResponse:
        """Ask for the suspend; where a snapshot comes first, wait for it, and answer the view however it ended."""
        environment_id = self.environment_id()
        self.refuse_key(self.body(Nothing))
        view, operation_id = stop_environment(environment_id)
        if operation_id is None:
            return self.answer(view)
        operation = await_end(operation_id, prefer_of(self.header("Prefer")).wait)
        if not operation.has_ended:
            return self.answer_accepted(operation, {})
        return self.answer(read_environment(environment_id)[0])


class ResetView(OperationAnswers):
    """Start over with an empty disk."""

    word = WRITE

    @describes(body=Nothing, answers={200: View}, summary="A new pod on a new, empty volume")
    def post(self, request: Request, id: str) -> HttpResponse:
        """Retire the volume and make a new one."""
        environment_id = self.environment_id()
        self.refuse_key(self.body(Nothing))
        view = reset_environment(environment_id, pods=pods_available(), tenant=config.current().tenant_id)
        return self.answer(view)


class WakeView(OperationAnswers):
    """Ask a stopped or failed pod to run."""

    word = WRITE

    @describes(body=Nothing, answers={200: View, 202: View}, summary="Wake a pod and wait until it runs")
    def post(self, request: Request, id: str) -> HttpResponse:
        """Wake it and wait as ``Prefer`` says; not running in time is 202 with the view."""
        environment_id = self.environment_id()
        self.refuse_key(self.body(Nothing))
        prefer = prefer_of(self.header("Prefer"))
        view, running = tools.wake(environment_id, owner=self.caller.subject, pods=pods_available(), wait=prefer.wait)
        headers = {"Preference-Applied": prefer.applied} if prefer.applied else {}
        if not running:
            headers["Retry-After"] = "1"
        return self.answer(view, status=200 if running else 202, headers=headers)


class EventsView(ApiView):
    """The events of an id; that its row still exists is not asked."""

    word = READ

    @describes(query=EventsQuery, answers={200: Events}, summary="Read the events of an Environment")
    def get(self, request: Request, id: str) -> HttpResponse:
        """Envelopes by number."""
        environment_id = self.environment_id()
        query = self.query(EventsQuery)
        since, until = query.window()
        found = events.read(
            environment_id,
            tenant=config.current().tenant_id,
            start=query.first(),
            limit=query.limit,
            types=query.type,
            since=since,
            until=until,
        )
        return self.answer({"events": found})
