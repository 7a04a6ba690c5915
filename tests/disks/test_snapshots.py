"""Snapshots and Disk versions: what the rows hold, what is refused, what is removed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from environments.models import Environment, Operation
from environments.services import operations, snapshots
from manifests.models import Artifact, ArtifactVersion
from nylorun.record.models import OutboxMessage
from tests.disks.helpers import asked, begun, operation, refusal, row, tree, version
from tests.support.client import Api

URL = "/v1/environments/demo"


@pytest.fixture(autouse=True)
def demo(api: Api) -> None:
    """A virtual Environment."""
    assert api.put(URL, {}).status == 201


def test_a_version_is_numbered_and_read_back(api: Api) -> None:
    """E-125, E-224: one folder artifact per Environment; the Operation's result is what the request answers."""
    assert api.get(f"{URL}/snapshots").json == {
        "artifactId": None, "latestVersion": None, "versions": [], "nextCursor": None,
    }  # fmt: skip
    made = asked(api, f"{URL}/snapshots")
    assert re.fullmatch("op_[0-9a-hjkmnp-tv-z]{26}", made.id)
    assert (made.kind, made.state, made.attempt, made.actor) == ("snapshot", "queued", 0, "app-1")
    assert snapshots.finish(begun(made.id), tree("one", 5120, 4))
    shown = api.get(f"/v1/operations/{made.id}").json
    artifact = Artifact.objects.get(environment_uid=row().uid)
    assert (shown["state"], shown["attempt"], "finishedAt" in shown) == ("succeeded", 1, True)
    assert shown["result"] == {
        "version": 1, "created": True, "artifactId": artifact.id, "size": 5120, "fileCount": 4,
    }  # fmt: skip
    listed = api.get(f"{URL}/snapshots").json
    assert (listed["artifactId"], listed["latestVersion"], listed["nextCursor"]) == (artifact.id, 1, None)
    only = listed["versions"][0]
    assert only == {
        "version": 1, "size": 5120, "fileCount": 4, "sha256": tree("one").sha256, "cause": "request",
        "actor": "app-1", "operationId": made.id, "createdAt": only["createdAt"],
    }  # fmt: skip
    assert api.get(f"{URL}/snapshots/1").json == only
    assert api.get(URL).json["disk"] == {"latestVersion": 1}
    assert row().disk_op is None
    assert api.get("/v1/artifacts").json["artifacts"] == []


def test_an_unchanged_disk_makes_no_version(api: Api) -> None:
    """E-124: the latest version's number is the result, and what the copy had claimed is given back."""
    version(api, "one")
    again = asked(api, f"{URL}/snapshots")
    snapshots.finish(begun(again.id), tree("one"))
    again.refresh_from_db()
    assert (again.http_status, again.result["version"], again.result["created"]) == (200, 1, False)
    assert ArtifactVersion.objects.count() == 1
    assert OutboxMessage.objects.filter(topic="content.remove").count() == 1
    assert version(api, "two") == 2
    assert version(api, "one") == 3


def test_the_versions_are_paged_newest_first(api: Api) -> None:
    """E-125: with a limit and a cursor, as every list."""
    for number in range(1, 6):
        assert version(api, f"content {number}") == number
    first = api.get(f"{URL}/snapshots?limit=2").json
    second = api.get(f"{URL}/snapshots?limit=2&cursor={first['nextCursor']}").json
    numbers = [one["version"] for page in (first, second) for one in page["versions"]]
    assert (numbers, second["latestVersion"]) == ([5, 4, 3, 2], 5)


@pytest.mark.parametrize("number", ["0", "01", "-1", "x", "1.5", "99999999999", "9" * 5000, "%F0%9F%98%80", "²"])
def test_a_number_that_is_none_is_refused(api: Api, number: str) -> None:
    """E-261: a version number is a whole number from 1."""
    for method in (api.get, api.delete):
        answer = method(f"{URL}/snapshots/{number}")
        assert (answer.status, answer.json["code"]) == (400, "invalid_request")


def test_a_missing_version_is_told(api: Api) -> None:
    """E-261: reading, restoring or starting from it is 404 with its number; deleting it deletes nothing."""
    for answer in (
        api.get(f"{URL}/snapshots/7"),
        api.post(f"{URL}/restore", {"version": 7}),
        api.put("/v1/environments/new", {"from": {"environment": "demo", "version": 7}}),
    ):
        assert (answer.status, answer.json["code"], answer.json["details"]) == (
            404, "disk_version_not_found", {"version": 7},
        )  # fmt: skip
    assert api.delete(f"{URL}/snapshots/7").json == {"version": 7, "deleted": False}
    latest = api.put("/v1/environments/new", {"from": {"environment": "demo", "version": "latest"}})
    assert latest.json["details"] == {"version": "latest"}
    assert not Environment.objects.filter(pk="new").exists()


def test_deleting_versions_never_frees_a_number(api: Api) -> None:
    """E-126, E-261: latest becomes the newest left, or null; the artifact stays; content rows go afterwards."""
    for content in ("one", "two", "three"):
        version(api, content)
    holder = ArtifactVersion.objects.get(number=3).holder
    assert api.delete(f"{URL}/snapshots/3").json == {"version": 3, "deleted": True}
    assert api.get(URL).json["disk"] == {"latestVersion": 2}
    promised = [one.payload["holders"] for one in OutboxMessage.objects.filter(topic="content.remove")]
    assert promised == [[holder]]
    api.delete(f"{URL}/snapshots/1")
    api.delete(f"{URL}/snapshots/2")
    listed = api.get(f"{URL}/snapshots").json
    assert (listed["latestVersion"], listed["versions"], listed["artifactId"] is None) == (None, [], False)
    assert api.get(URL).json["disk"] == {}
    assert version(api, "three") == 4


def test_keep_removes_the_oldest_but_none_that_is_still_read(api: Api) -> None:
    """E-254, E-262: ``lifecycle.keep`` prunes in the commit that inserts; a pending start keeps its version."""
    api.put("/v1/environments/kept", {"lifecycle": {"keep": 2}})
    version(api, "one", "kept")
    assert api.put("/v1/environments/start", {"from": {"environment": "kept", "version": 1}}).status == 201
    for content in ("two", "three", "four"):
        version(api, content, "kept")
    numbers = [one["version"] for one in api.get("/v1/environments/kept/snapshots").json["versions"]]
    assert numbers == [4, 3, 1]
    refused = api.delete("/v1/environments/kept/snapshots/1")
    assert refusal(refused) == (409, "environment_busy", 5)
    api.delete("/v1/environments/start")
    assert api.delete("/v1/environments/kept/snapshots/1").json["deleted"]


def test_the_disk_goes_with_its_environment(api: Api) -> None:
    """E-127: artifact and versions in the same commit; the id made again has neither versions nor numbers of it."""
    version(api, "one")
    assert api.delete(URL).json["deleted"]
    assert not Artifact.objects.exists()
    assert OutboxMessage.objects.filter(topic="content.remove").count() == 1
    api.put(URL, {})
    assert api.get(f"{URL}/snapshots").json["versions"] == []
    assert version(api, "other") == 1


def test_a_deleted_source_keeps_its_content_until_pending_starts_are_done(api: Api) -> None:
    """E-262: the artifact is orphaned, and the sweep removes it once no disk seed names it."""
    from environments.services import versions

    version(api, "one")
    api.put("/v1/environments/new", {"from": {"environment": "demo", "version": "latest"}})
    api.delete(URL)
    assert Artifact.objects.get().orphaned
    assert versions.remove_orphaned() == 0
    waiting = operation("seed", "new")
    assert waiting.data["version"] == 1
    from tests.disks.helpers import fill

    assert fill(waiting.id)
    assert versions.remove_orphaned() == 1
    assert not Artifact.objects.exists()


def test_the_lease_refuses_what_would_meet_the_copy(api: Api) -> None:
    """E-119, E-120, E-83: calls, disk work and deletes meanwhile are 409 with a time to come back."""
    made = asked(api, f"{URL}/snapshots")
    shown = api.get(URL).json["disk"]["operation"]
    assert {name: shown[name] for name in ("kind", "operationId")} == {"kind": "snapshot", "operationId": made.id}
    assert set(shown) == {"kind", "operationId", "startedAt", "until"}
    for answer in (
        api.post(f"{URL}/tools/bash", {"command": "true"}),
        api.post(f"{URL}/snapshots", {}),
        api.post(f"{URL}/restore", {"version": 1}),
        api.delete(URL),
    ):
        assert refusal(answer) == (409, "environment_busy", 5)
    assert api.put(URL, {"labels": {"a": "b"}}).status == 200
    assert api.delete(f"{URL}?force=true").json["deleted"]
    made.refresh_from_db()
    assert made.state == "cancelled"
    assert operations.begin(made.id) is None


def test_kind_none_has_no_disk(api: Api) -> None:
    """E-128: nothing to copy, restore or start from."""
    api.put("/v1/environments/dry", {"kind": "none"})
    for path in ("snapshots", "restore"):
        body: dict[str, Any] = {"version": 1} if path == "restore" else {}
        assert refusal(api.post(f"/v1/environments/dry/{path}", body))[:2] == (400, "request_rejected")
    version(api, "one")
    start = {"environment": "demo", "version": 1}
    assert refusal(api.put("/v1/environments/x", {"kind": "none", "from": start}))[:2] == (400, "request_rejected")
    start = {"environment": "dry", "version": 1}
    assert refusal(api.put("/v1/environments/x", {"from": start}))[:2] == (400, "request_rejected")
    assert refusal(api.put("/v1/environments/x", {"from": {**start, "environment": "no"}}))[:2] == (404, "not_found")


def test_a_copy_that_slept_past_its_lease_writes_nothing(api: Api, clock: Any) -> None:
    """E-283, E-258: the next holder's commit fails it; the late attempt's last commit is refused."""
    first = begun(asked(api, f"{URL}/snapshots").id)
    clock.advance(seconds=121)
    second = begun(asked(api, f"{URL}/snapshots").id)
    assert Operation.objects.get(pk=first.operation_id).error["code"] == "operation_interrupted"
    assert not snapshots.finish(first, tree("late"))
    assert operations.renew(first) is operations.Standing.LOST
    assert snapshots.finish(second, tree("one"))
    assert ArtifactVersion.objects.get().sha256 == tree("one").sha256


def test_a_lapsed_attempt_is_followed_by_another_of_the_same_operation(api: Api, clock: Any) -> None:
    """E-227: attempt + 1, the earlier one is fenced off; at most five starts."""
    made = asked(api, f"{URL}/snapshots")
    first = begun(made.id)
    assert operations.begin(made.id) is None
    for attempt in range(2, 6):
        clock.advance(seconds=121)
        assert begun(made.id).attempt == attempt
    assert not snapshots.finish(first, tree())
    clock.advance(seconds=121)
    assert operations.begin(made.id) is None
    made.refresh_from_db()
    assert (made.state, made.error["code"], row().disk_op) == ("failed", "operation_interrupted", None)
    answer = api.get(f"/v1/operations/{made.id}").json
    assert answer["error"]["details"]["retryAfterSeconds"] == 5


def test_no_copy_starts_under_a_call(api: Api, clock: Any) -> None:
    """E-283: a copy that lost its lease while a call began fails instead of taking it again."""
    from tests.disks.test_operations import call_runs

    made = asked(api, f"{URL}/snapshots")
    clock.advance(seconds=121)
    with call_runs("demo"):
        assert operations.begin(made.id) is None
    made.refresh_from_db()
    assert (made.state, made.error["code"]) == ("failed", "operation_interrupted")
