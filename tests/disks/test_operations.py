"""Operations over HTTP: waiting, listing, cancelling, and what infrastructure failures do to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from environments.commands import CallTool
from environments.models import Operation
from environments.services import calls, dispatch, operations, snapshots
from environments.services.available import PodsAvailable
from nylorun.record.models import OutboxMessage
from tests.disks.helpers import asked, begun, refusal, row, tree, version
from tests.support.client import Api

URL = "/v1/environments/demo"


@contextmanager
def call_runs(id: str) -> Iterator[None]:
    """A call is under way on this Environment for the block."""
    call = CallTool(id, "bash", "hash")
    begun_call = calls.begin(call, owner=None, pods=PodsAvailable("fake", ready=True))
    yield
    calls.finish(begun_call, id)


@pytest.fixture
def demo(api: Api) -> Operation:
    """A virtual Environment whose snapshot was asked for."""
    api.put(URL, {})
    return asked(api, f"{URL}/snapshots")


def test_an_answer_in_time_is_the_endpoints_own(api: Api, demo: Operation) -> None:
    """E-225: nobody waits with ``respond-async``; a read waits only when asked to."""
    read = api.get(f"/v1/operations/{demo.id}")
    assert (read.status, read.json["state"]) == (200, "queued")
    waited = api.get(f"/v1/operations/{demo.id}", Prefer="wait=1")
    assert (waited.json["state"], waited.headers["Preference-Applied"]) == ("queued", "wait=1")
    accepted = api.post("/v1/environments/other/snapshots", {}, Prefer="respond-async")
    assert accepted.status == 404


@pytest.mark.django_db(transaction=True)
def test_a_request_waits_for_the_end_of_its_operation() -> None:
    """E-225, E-228: 201 with the result when the work ends in time; the wait holds no lock."""
    api = Api.for_application("app-1")
    api.put(URL, {})
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(api.post(f"{URL}/snapshots", {}, Prefer="wait=20"))
        finally:
            connection.close()

    waiting = threading.Thread(target=ask)
    waiting.start()
    from tests.support.platform import eventually

    eventually(lambda: Operation.objects.exists())
    assert snapshots.finish(begun(Operation.objects.get().id), tree("one"))
    waiting.join(20)
    assert (answers[0].status, answers[0].json["version"]) == (201, 1)


def test_how_an_operation_ended_is_how_its_request_is_answered(api: Api, demo: Operation) -> None:
    """E-225: a failure with its own status and code."""
    from nylorun.kernel.errors import ByteLimitExceeded

    error = ByteLimitExceeded("too large", details={"limit": "versionBytes", "limitBytes": 5})
    assert operations.fail(begun(demo.id), error)
    demo.refresh_from_db()
    assert (demo.state, demo.http_status) == ("failed", 413)
    shown = api.get(f"/v1/operations/{demo.id}").json["error"]
    assert shown == {"code": "limit_exceeded", "message": "too large", "details": error.details}
    assert row().disk_op is None


def test_queued_work_is_cancelled_at_once_and_running_work_at_its_next_step(api: Api, demo: Operation) -> None:
    """E-226: the lease goes with it; an ended Operation is 409 with its state."""
    assert api.post(f"/v1/operations/{demo.id}/cancel", {}).json["state"] == "cancelled"
    assert row().disk_op is None
    finished = api.post(f"/v1/operations/{demo.id}/cancel", {})
    assert (finished.status, finished.json["code"], finished.json["details"]) == (
        409, "operation_finished", {"state": "cancelled"},
    )  # fmt: skip
    running = begun(asked(api, f"{URL}/snapshots").id)
    assert api.post(f"/v1/operations/{running.operation_id}/cancel", {}).json["state"] == "running"
    assert operations.has_moved(running)
    assert operations.renew(running) is operations.Standing.CANCELLED
    assert operations.end_cancelled(running)
    assert (Operation.objects.get(pk=running.operation_id).state, row().disk_op) == ("cancelled", None)


def test_infrastructure_that_does_not_answer_is_tried_again(api: Api, demo: Operation, clock: Any) -> None:
    """E-227: queued with a growing delay and the lease kept; the fifth failure is final."""
    for attempt in range(1, 5):
        assert operations.put_back(begun(demo.id), "the store is away")
        demo.refresh_from_db()
        assert (demo.state, demo.attempt) == ("queued", attempt)
        assert row().disk_op["operationId"] == demo.id
        assert OutboxMessage.objects.filter(topic="operation.run").exists()
    assert operations.put_back(begun(demo.id), "the store is away")
    answer = api.get(f"/v1/operations/{demo.id}").json["error"]
    assert (answer["code"], answer["details"]) == ("disk_copy_failed", {"reason": "the store is away"})
    assert row().disk_op is None


def test_progress_is_shown(api: Api, demo: Operation) -> None:
    """E-224: bytes and files so far."""
    running = begun(demo.id)
    assert operations.renew(running, {"bytes": 10, "files": 2}) is operations.Standing.OURS
    assert api.get(f"/v1/operations/{demo.id}").json["progress"] == {"bytes": 10, "files": 2}


def test_operations_are_listed_by_state(api: Api, demo: Operation) -> None:
    """E-224, E-229: by id, of this very Environment; one that is not there is 404."""
    snapshots.finish(begun(demo.id), tree())
    queued = asked(api, f"{URL}/snapshots")
    everything = api.get(f"{URL}/operations").json
    assert ([one["id"] for one in everything["operations"]], everything["nextCursor"]) == ([demo.id, queued.id], None)
    ended = api.get(f"{URL}/operations?state=succeeded&state=failed").json["operations"]
    assert [one["id"] for one in ended] == [demo.id]
    assert refusal(api.get(f"{URL}/operations?state=lost"))[:2] == (400, "invalid_request")
    assert api.get("/v1/environments/no/operations").status == 404
    assert api.get("/v1/operations/op_no").status == 404
    first = api.get(f"{URL}/operations?limit=1").json
    assert first["nextCursor"] is not None


def test_ended_operations_are_kept_for_thirty_days(api: Api, demo: Operation, clock: Any) -> None:
    """E-229: a version outlives the Operation that made it."""
    snapshots.finish(begun(demo.id), tree())
    clock.advance(days=29)
    assert dispatch.remove_ended() == 0
    clock.advance(days=2)
    assert dispatch.remove_ended() == 1
    assert api.get(f"{URL}/snapshots/1").status == 200


def test_an_operation_of_an_earlier_row_is_not_of_the_one_made_again(api: Api, demo: Operation) -> None:
    """E-279: the new row under the id shows and runs nothing of it."""
    api.delete(f"{URL}?force=true")
    api.put(URL, {})
    assert api.get(f"{URL}/operations").json["operations"] == []
    assert operations.begin(demo.id) is None
    assert version(api, "one") == 1
