"""Forks: the plan, what refuses one, the copy of the source, and the one commit that makes it."""

from __future__ import annotations

from typing import Any

import pytest

from environments.compute.fake import FakeDriver
from environments.models import Environment, Operation
from environments.services import forks, operations, setups
from environments.services.operations import Attempt
from environments.services.readiness import ready
from nylorun.kernel.errors import RequestConflict
from tests.disks.helpers import asked, begun, events, fill, operation, refusal, row, tree, version
from tests.disks.test_operations import call_runs
from tests.factories import FAKE_PODS
from tests.support.client import Api
from vault.models import Vault

URL = "/v1/environments/demo"
FORK = f"{URL}/fork"
BOX = "/v1/environment-manifests/box"


@pytest.fixture(autouse=True)
def demo(api: Api) -> None:
    """A virtual Environment from ``box@1``; ``box@2`` needs more memory."""
    assert api.put(BOX, {"kind": "virtual", "resources": {"memory": "256MiB"}}).status == 201
    assert api.put(URL, {"manifest": "box", "labels": {"team": "a"}, "ownerUserId": "ada"}).status == 201
    assert api.put(BOX, {"kind": "virtual", "resources": {"memory": "512MiB"}}).status == 201


def copied(attempt: Attempt, content: str = "one") -> Attempt:
    """A worker copied the source."""
    from dataclasses import replace

    number = forks.keep_copy(attempt, tree(content))
    assert number is not None
    return replace(attempt, lease=None, data={**attempt.data, "version": number})


def made(attempt: Attempt) -> None:
    forks.create(attempt, attempt.data.get("version"), pods=FAKE_PODS, tenant="local")


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_fork_to_an_id_that_is_taken_is_refused_dry_or_not(api: Api, dry_run: bool) -> None:
    """E-137: a dry run refuses what the fork would; a missing source or Manifest is told first."""
    api.put("/v1/environments/taken", {"kind": "none"})
    answer = api.post(FORK, {"id": "taken", "dryRun": dry_run})
    assert refusal(answer)[:2] == (409, "request_rejected"), answer.json
    assert "Environment taken exists" in answer.json["message"]
    unknown = api.post(FORK, {"id": "taken", "manifest": "none-such", "dryRun": dry_run})
    assert refusal(unknown)[:2] == (404, "manifest_not_found")


def test_a_dry_run_answers_the_plan_and_writes_nothing(api: Api) -> None:
    """E-133, E-134, E-135, E-137: latest version by default, disk latest, secrets by name, changes."""
    answer = api.post(FORK, {"id": "demo-2", "dryRun": True})
    assert answer.status == 200
    assert answer.json == {
        "dryRun": True,
        "plan": {
            "source": "demo", "id": "demo-2", "kind": "virtual", "manifest": {"name": "box", "version": 2},
            "disk": "latest", "setup": False, "secrets": {"copied": [], "dropped": [], "missing": []},
            "changes": [{
                "field": "resources",
                "from": {"cpus": 2, "memory": "256MiB"}, "to": {"cpus": 2, "memory": "512MiB"},
            }],
            "sessions": 0,
        },
    }  # fmt: skip
    assert Operation.objects.count() == 0


def test_a_fork_of_latest_copies_first_and_is_made_in_one_commit(api: Api) -> None:
    """E-16, E-24, E-138, E-139, E-140, E-230: one Operation; row, Vault and both events together."""
    fork = asked(api, FORK, {"id": "demo-2", "labels": {"team": "b"}})
    assert (fork.kind, fork.environment_id, row().disk_op["kind"]) == ("fork", "demo", "snapshot")
    before = Environment.objects.filter(pk="demo").values().get()
    attempt = copied(begun(fork.id))
    assert row().disk_op is None
    made(attempt)
    new = row("demo-2")
    assert Vault.objects.filter(environment_uid=new.uid).exists()
    view = api.get("/v1/environments/demo-2").json
    assert (view["labels"], view["ownerUserId"], view["manifestVersion"]) == ({"team": "b"}, None, 2)
    assert (view["forkedFrom"], view["disk"]) == ({"environment": "demo", "disk": 1}, {"seed": {"version": 1}})
    assert events("demo-2")[0][1]["forkedFrom"] == {"environment": "demo", "disk": 1}
    assert events()[-1] == ("forked", {
        "to": "demo-2", "disk": 1, "manifest": {"name": "box", "version": 2}, "secrets": 0,
    })  # fmt: skip
    fork.refresh_from_db()
    assert (fork.state, fork.http_status, fork.result["plan"]["disk"]) == ("succeeded", 201, 1)
    assert fork.result["environment"]["id"] == "demo-2"
    after = Environment.objects.filter(pk="demo").values().get()
    moved = {name for name in before if before[name] != after[name]}
    assert moved <= {"disk_op", "disk_latest", "last_used_at", "updated_at", "workspace_at"}
    assert fill(operation("seed", "demo-2").id)
    assert ready(row("demo-2"))


def test_the_fork_is_of_the_version_its_plan_resolved(api: Api) -> None:
    """E-220: a save meanwhile changes nothing."""
    fork = asked(api, FORK, {"id": "demo-2"})
    api.put(BOX, {"kind": "virtual", "resources": {"memory": "768MiB"}})
    made(copied(begun(fork.id)))
    assert row("demo-2").manifest_version_number == 2


@pytest.mark.parametrize("disk", ["empty", 1])
def test_a_fork_without_a_copy_needs_no_lease(api: Api, disk: Any) -> None:
    """E-134: empty has no disk to start from; a number must exist; a busy source is no obstacle."""
    version(api, "one")
    with call_runs("demo"):
        fork = asked(api, FORK, {"id": "demo-2", "disk": disk})
        attempt = begun(fork.id)
        assert attempt.lease is None
        made(attempt)
    wanted = None if disk == "empty" else 1
    assert row("demo-2").forked_from == {"environment": "demo", "disk": wanted}
    assert (row("demo-2").disk_seed or {}).get("version") == wanted


def test_what_refuses_a_fork(api: Api) -> None:
    """E-16, E-131, E-132, E-133: each with its own answer, nothing made."""
    api.put("/v1/environments/inline", {})
    api.put("/v1/environments/taken", {})
    person = api.with_headers(**{"Nylorun-Subject": "eve", "Nylorun-Scopes": "environments:write"})
    for answer, wanted in (
        (api.post(FORK, {"id": "demo"}), (400, "request_rejected")),
        (api.post(FORK, {}), (400, "invalid_request")),
        (api.post(FORK, {"id": "x", "manifest": "no"}), (404, "manifest_not_found")),
        (api.post(FORK, {"id": "x", "manifest": "box@9"}), (404, "manifest_not_found")),
        (api.post(FORK, {"id": "x", "disk": 9}), (404, "disk_version_not_found")),
        (api.post(FORK, {"id": "x", "disk": "some"}), (400, "invalid_request")),
        (api.post(FORK, {"id": "taken"}), (409, "request_rejected")),
        (api.post("/v1/environments/no/fork", {"id": "x"}), (404, "not_found")),
        (api.post("/v1/environments/inline/fork", {"id": "x"}), (400, "request_rejected")),
        (person.post(FORK, {"id": "x"}), (404, "not_found")),
    ):
        assert refusal(answer)[:2] == wanted
    with call_runs("demo"):
        assert refusal(api.post(FORK, {"id": "x"})) == (409, "environment_busy", None)
    assert Operation.objects.count() == 0
    assert not Environment.objects.filter(pk="x").exists()


def test_an_id_taken_meanwhile_fails_the_fork_and_leaves_a_version(api: Api) -> None:
    """E-16: a create that is refused after the copy leaves only an extra Disk version."""
    fork = asked(api, FORK, {"id": "demo-2"})
    attempt = copied(begun(fork.id))
    api.put("/v1/environments/demo-2", {})
    with pytest.raises(RequestConflict):
        made(attempt)
    assert api.get(f"{URL}/snapshots").json["versions"][0]["cause"] == "fork"


def test_a_later_attempt_does_not_copy_again(api: Api, clock: Any) -> None:
    """E-227: the number stands in the Operation; the late attempt makes nothing."""
    fork = asked(api, FORK, {"id": "demo-2"})
    first = copied(begun(fork.id))
    clock.advance(seconds=121)
    second = begun(fork.id)
    assert (second.attempt, second.lease, second.data["version"]) == (2, None, 1)
    with pytest.raises(forks.FenceMoved):
        made(first)
    assert not Environment.objects.filter(pk="demo-2").exists()
    made(second)
    assert row("demo-2").forked_from["disk"] == 1


def test_a_fork_that_copied_its_source_goes_on_without_a_lease(api: Api) -> None:
    """E-226, E-227: it renews, is refused or cancelled as before, although its lease went back."""
    fork = asked(api, FORK, {"id": "demo-2"})
    attempt = begun(fork.id)
    assert forks.keep_copy(attempt, tree("one")) == 1
    assert operations.renew(attempt) is operations.Standing.OURS
    assert operations.fail(attempt, RequestConflict("taken"))
    again = begun(asked(api, FORK, {"id": "demo-2"}).id)
    assert forks.keep_copy(again, tree("one")) == 1
    api.post(f"/v1/operations/{again.operation_id}/cancel", {})
    with pytest.raises(forks.FenceMoved):
        made(copied_before(again))
    assert operations.renew(again) is operations.Standing.CANCELLED
    assert operations.end_cancelled(again)
    assert Operation.objects.get(pk=again.operation_id).state == "cancelled"


def copied_before(attempt: Attempt) -> Attempt:
    from dataclasses import replace

    return replace(attempt, data={**attempt.data, "version": 1})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("snapshots", {}), ("restore", {"version": 1}), ("fork", {"id": "x"})),
        *(("stop", {}), ("reset", {}), ("wake", {})),
    ],
)
def test_keys_are_refused_rather_than_ignored(api: Api, pods: FakeDriver, path: str, body: dict[str, Any]) -> None:
    """E-233: no route promises to replay what it does not keep, and nothing of the request is done."""
    api.put("/v1/environments/pod", {"kind": "pod"})
    for url in (URL, "/v1/environments/pod"):
        before = events(url.rpartition("/")[2])
        answer = api.post(f"{url}/{path}", body, **{"Idempotency-Key": "k"})
        assert refusal(answer)[:2] == (400, "request_rejected")
        assert "Idempotency keys" in answer.json["message"]
        assert api.post(f"{url}/{path}", {**body, "idempotencyKey": "k"}).json["message"] == answer.json["message"]
        assert refusal(api.post(f"{url}/{path}", body, **{"Idempotency-Key": "a b"}))[:2] == (400, "invalid_request")
        assert (events(url.rpartition("/")[2]), Operation.objects.count()) == (before, 0)


def test_a_version_a_fork_is_about_to_use_stays(api: Api) -> None:
    """E-262: an unfinished Operation names it."""
    version(api, "one")
    fork = asked(api, FORK, {"id": "demo-2", "disk": 1})
    assert refusal(api.delete(f"{URL}/snapshots/1")) == (409, "environment_busy", 5)
    api.post(f"/v1/operations/{fork.id}/cancel", {})
    assert api.delete(f"{URL}/snapshots/1").json["deleted"]


def test_other_setup_runs_on_the_copied_disk(api: Api, pods: FakeDriver) -> None:
    """E-136: for a pod with a disk, another Recipe and setup; the seed stays until it is done."""
    from tests.workers.test_pods import join
    from workers.steps import pods as step

    api.put("/v1/environment-manifests/tool", {"kind": "pod", "setup": ["make"]})
    version(api, "one")
    plan = api.post(FORK, {"id": "other", "manifest": "tool", "dryRun": True}).json["plan"]
    assert (plan["kind"], plan["setup"]) == ("pod", True)
    api.delete(f"{URL}?force=true")
    api.put("/v1/environments/src", {"manifest": "box"})
    version(api, "one", "src")
    fork = asked(api, "/v1/environments/src/fork", {"id": "demo", "manifest": "tool", "disk": 1})
    made(begun(fork.id))
    step.reconcile_pod("demo")
    assert join(api, pods).status == 200
    assert fill(operation("seed").id)
    assert (row().disk_seed["written"], ready(row())) == (True, False)
    assert setups.succeed(begun(operation("setup").id))
    assert (row().disk_seed, ready(row())) == (None, True)


def test_a_fork_of_the_same_recipe_runs_no_setup(api: Api, pods: FakeDriver) -> None:
    """E-136: the copied disk already holds its result."""
    api.put("/v1/environment-manifests/tool", {"kind": "pod", "setup": ["make"]})
    api.put("/v1/environments/pod", {"manifest": "tool"})
    plan = api.post("/v1/environments/pod/fork", {"id": "x", "dryRun": True}).json["plan"]
    assert (plan["setup"], plan["changes"]) == (False, [])
    empty = api.post("/v1/environments/pod/fork", {"id": "x", "disk": "empty", "dryRun": True}).json["plan"]
    assert (empty["disk"], empty["setup"]) == (None, False)


def test_cancelling_a_fork_ends_its_lease(api: Api) -> None:
    """E-226: nothing of it is left."""
    fork = asked(api, FORK, {"id": "demo-2"})
    running = begun(fork.id)
    api.post(f"/v1/operations/{fork.id}/cancel", {})
    assert operations.renew(running) is operations.Standing.CANCELLED
    operations.end_cancelled(running)
    assert row().disk_op is None
