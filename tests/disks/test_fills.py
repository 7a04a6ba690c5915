"""Disks that start from a version: create with ``from``, restore, recovery, and the snapshot before a suspend."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from environments.compute.fake import FakeDriver
from environments.errors import DiskCopyFailed
from environments.models import Operation
from environments.services import dispatch, operations, recoveries, seeds, snapshots, waits
from environments.services.readiness import ready
from nylorun import config
from nylorun.config import load
from tests.disks.helpers import LATER, asked, begun, events, fill, operation, refusal, row, tree, version
from tests.disks.test_operations import call_runs
from tests.support.client import Api
from tests.workers.test_pods import join
from workers.steps import pods as step

URL = "/v1/environments/demo"
POD = {"kind": "pod"}


def run_pod(api: Api, pods: FakeDriver) -> None:
    """Reconcile, join, reconcile: the pod of ``demo`` runs."""
    step.reconcile_pod("demo")
    assert join(api, pods).status == 200
    step.reconcile_pod("demo")


def lose(api: Api, pods: FakeDriver) -> None:
    """Its volume vanishes, and a look finds that out."""
    pods.lose_volume(str(row().k8s_name))
    step.reconcile_pod("demo")
    assert row().observed == "lost"


@pytest.fixture
def source(api: Api) -> None:
    """A virtual Environment ``base`` with one version."""
    api.put("/v1/environments/base", {})
    assert version(api, "one", "base") == 1


# --------------------------------------------------------------------------------------------------------------- from


def test_a_virtual_disk_is_filled_before_its_first_call(api: Api, source: None) -> None:
    """E-84, E-122, E-128, E-145: the seed stands with the row; calls wait for it and are not refused."""
    made = api.put(URL, {"from": {"environment": "base", "version": "latest"}})
    assert (made.status, made.json["disk"]) == (201, {"seed": {"version": 1}})
    assert events()[0][1]["from"] == {"environment": "base", "version": 1}
    waiting = operation("seed")
    assert (waiting.state, not ready(row())) == ("queued", True)
    running = begun(waiting.id)
    assert row().disk_op["kind"] == "seed"
    with call_runs("demo"):
        assert not ready(row())
    assert seeds.finish(running)
    assert (ready(row()), row().disk_seed, row().workspace_at is None) == (True, None, False)


def test_a_seeds_lease_is_ten_minutes_and_then_anothers(api: Api, source: None, clock: Any) -> None:
    """E-121, E-258: another worker takes the same Operation over only when its own lease and the disk's lapsed."""
    api.put(URL, {"from": {"environment": "base", "version": 1}})
    first = begun(operation("seed").id)
    shown = api.get(URL).json["disk"]["operation"]
    began, until = (datetime.fromisoformat(shown[name]) for name in ("startedAt", "until"))
    assert until - began == timedelta(minutes=10)
    clock.advance(seconds=60)
    assert operations.begin(first.operation_id) is None
    clock.advance(minutes=10)
    assert begun(first.operation_id).attempt == 2
    assert not seeds.finish(first)


def test_what_a_killed_worker_had_in_hand_is_taken_over_by_the_next_of_its_name(
    api: Api, source: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-227: no lease has to lapse; work of another worker, and of one without a name, is left alone."""
    monkeypatch.setattr(config, "current", lambda: replace(load(), worker="one"))
    api.put(URL, {"from": {"environment": "base", "version": 1}})
    first = begun(operation("seed").id)
    assert (dispatch.take_over("two"), dispatch.take_over("")) == (0, 0)
    assert operations.begin(first.operation_id) is None
    assert dispatch.take_over("one") == 1
    assert begun(first.operation_id).attempt == 2


def test_a_source_out_of_sight_looks_missing(api: Api, source: None) -> None:
    """E-128: another person's guarded source is the opaque 404."""
    api.put("/v1/environments/base", {"ownerUserId": "ada"})
    person = api.with_headers(**{"Nylorun-Subject": "eve", "Nylorun-Scopes": "environments:write"})
    start = {"environment": "base", "version": 1}
    assert refusal(person.put(URL, {"from": start}))[:2] == (404, "not_found")
    owner = api.with_headers(**{"Nylorun-Subject": "ada", "Nylorun-Scopes": "environments:write"})
    assert owner.put(URL, {"from": start}).status == 201


def test_being_a_source_is_a_use(api: Api, source: None, clock: Any) -> None:
    """E-305: the sweep of unused Environments sees it."""
    before = row("base").last_used_at
    clock.advance(hours=1)
    api.put(URL, {"from": {"environment": "base", "version": 1}})
    assert row("base").last_used_at > before


def test_a_put_that_finds_refuses_from(api: Api, source: None) -> None:
    """E-128: it applies only to a new one."""
    api.put(URL, {})
    assert api.put(URL, {"from": {"environment": "base", "version": 1}}).status == 409


def test_a_seed_that_fails_is_tried_again_by_the_next_start(api: Api, source: None) -> None:
    """E-122: a waiting call is told, the seed stays, and the next start makes a new Operation."""
    api.put(URL, {"from": {"environment": "base", "version": 1}})
    operations.fail(begun(operation("seed").id), DiskCopyFailed("no room"))
    assert row().disk_seed is not None
    refused = api.post(f"{URL}/wake", {})
    assert refused.status == 200
    assert Operation.objects.filter(kind="seed", state="queued").count() == 1
    api.post(f"/v1/operations/{operation('seed').id}/cancel", {})
    from environments.errors import EnvironmentUnavailable
    from environments.services import calls

    begun_call = calls.Begun("ef_x", row().uid, None)
    with pytest.raises(EnvironmentUnavailable):
        calls.look(begun_call, "demo")


def test_a_pods_seed_waits_for_its_engine_and_counts_no_attempt(api: Api, pods: FakeDriver, source: None) -> None:
    """E-122: the join hands it out; a stop meanwhile costs nothing; files and setup do not run on it."""
    body = {**POD, "setup": ["make"], "from": {"environment": "base", "version": 1}}
    assert api.put(URL, body).status == 201
    waiting = operation("seed")
    assert operations.begin(waiting.id) is None
    run_pod(api, pods)
    assert not Operation.objects.filter(kind="setup").exists()
    running = begun(waiting.id)
    assert api.post(f"{URL}/stop", {}).status == 200
    assert operations.put_back(running, "the Engine went away")
    waiting.refresh_from_db()
    assert waiting.data["excused"] == 1
    step.reconcile_pod("demo")
    assert operations.begin(waiting.id) is None
    api.post(f"{URL}/wake", {}, Prefer="wait=0")
    run_pod(api, pods)
    assert fill(waiting.id)
    assert (ready(row()), row().setup_done_gen) == (True, 0)


def test_a_cancelled_seed_fails_its_pod(api: Api, pods: FakeDriver, source: None) -> None:
    """E-122, E-226: ``seed_cancelled``; the next start asks for it again."""
    api.put(URL, {**POD, "from": {"environment": "base", "version": 1}})
    run_pod(api, pods)
    running = begun(operation("seed").id)
    api.post(f"/v1/operations/{running.operation_id}/cancel", {})
    operations.end_cancelled(running)
    assert (row().observed, row().reason, row().disk_op) == ("failed", "seed_cancelled", None)
    step.reconcile_pod("demo")
    api.post(f"{URL}/wake", {}, Prefer="wait=0")
    run_pod(api, pods)
    assert fill(operation("seed").id)
    assert ready(row())


def test_a_snapshot_of_a_disk_that_is_not_whole_is_refused(api: Api, pods: FakeDriver, source: None) -> None:
    """E-120: it would hold half a disk; a restore replaces the seed instead."""
    api.put(URL, {"from": {"environment": "base", "version": 1}})
    assert refusal(api.post(f"{URL}/snapshots", {})) == (409, "environment_busy", 5)
    api.put("/v1/environments/set-up", {**POD, "setup": ["make"]})
    assert refusal(api.post("/v1/environments/set-up/snapshots", {})) == (409, "environment_busy", 5)


# ------------------------------------------------------------------------------------------------------------ restore


def test_a_virtual_restore_holds_the_lease_and_says_reset(api: Api) -> None:
    """E-130, E-120: calls are refused until the workspace is swapped; the result is the view."""
    api.put(URL, {})
    version(api, "one")
    made = asked(api, f"{URL}/restore", {"version": 1})
    lease = api.get(URL).json["disk"]["operation"]
    assert (lease["kind"], lease["version"]) == ("restore", 1)
    assert refusal(api.post(f"{URL}/tools/bash", {"command": "true"})) == (409, "environment_busy", 5)
    assert fill(made.id)
    made.refresh_from_db()
    assert (made.result["id"], made.result["disk"]) == ("demo", {"latestVersion": 1})
    assert events()[-1] == ("reset", {"reason": "restore", "version": 1})


def test_a_pods_restore_retires_the_old_volume(api: Api, pods: FakeDriver) -> None:
    """E-100, E-130, E-59: a new volume under a new name, filled before its first call; files and setup do not run."""
    api.put(URL, POD)
    run_pod(api, pods)
    version(api, "one")
    old = str(row().k8s_name)
    made = asked(api, f"{URL}/restore", {"version": 1})
    assert (row().retiring, row().volume_gen, row().disk_seed["version"]) == (old, 1, 1)
    assert events()[-1] == ("reset", {"volumeGeneration": 1, "reason": "restore", "version": 1})
    assert api.get(URL).json["disk"]["seed"] == {"version": 1}
    assert refusal(api.post(f"{URL}/restore", {"version": 1})) == (409, "environment_busy", 5)
    run_pod(api, pods)
    assert fill(made.id)
    assert (row().setup_done_gen, row().disk_seed, ready(row())) == (1, None, True)


def test_a_reset_cancels_a_restore_that_waits(api: Api, pods: FakeDriver) -> None:
    """E-120: the seed is dropped and its Operation cancelled."""
    api.put(URL, POD)
    run_pod(api, pods)
    version(api, "one")
    made = asked(api, f"{URL}/restore", {"version": 1})
    for _ in range(3):
        step.reconcile_pod("demo")
    assert api.post(f"{URL}/reset", {}).status == 200
    made.refresh_from_db()
    assert (made.state, row().disk_seed) == ("cancelled", None)


def test_a_lost_pod_comes_back_by_a_restore(api: Api, pods: FakeDriver) -> None:
    """E-100: its reason is ``lost``; a lost disk cannot be copied."""
    api.put(URL, POD)
    run_pod(api, pods)
    version(api, "one")
    lose(api, pods)
    assert refusal(api.post(f"{URL}/snapshots", {}))[:2] == (409, "environment_lost")
    made = asked(api, f"{URL}/restore", {"version": 1})
    assert events()[-1][1]["reason"] == "lost"
    for _ in range(3):
        step.reconcile_pod("demo")
    run_pod(api, pods)
    assert fill(made.id)
    assert ready(row())


# ----------------------------------------------------------------------------------------------------------- recovery


@pytest.fixture
def recovering(api: Api, pods: FakeDriver) -> FakeDriver:
    """A pod that wants recovery, with one version, just lost."""
    api.put(URL, {**POD, "lifecycle": {"onLost": "restore"}})
    run_pod(api, pods)
    version(api, "one")
    lose(api, pods)
    return pods


def recovered(api: Api, pods: FakeDriver) -> Operation:
    """A worker runs the waiting recovery to its end."""
    waiting = operation("recover")
    recoveries.advance(waiting.id, tenant="local")
    for _ in range(3):
        step.reconcile_pod("demo")
    run_pod(api, pods)
    assert fill(waiting.id)
    waiting.refresh_from_db()
    return waiting


def test_a_lost_pod_recovers_by_itself_where_it_was_asked_to(api: Api, recovering: FakeDriver) -> None:
    """E-252: from the latest version, in the commit that writes lost; calls meanwhile are told to come back."""
    waiting = operation("recover")
    assert (waiting.state, row().observed) == ("queued", "lost")
    assert refusal(api.post(f"{URL}/tools/bash", {"command": "true"})) == (409, "environment_busy", 5)
    assert recovered(api, recovering).state == "succeeded"
    assert ready(row())
    assert [type for type, _ in events()][-3:] == ["lost", "reset", "running"]
    assert events()[-2][1] == {"volumeGeneration": 1, "reason": "lost", "version": 1}


def test_recovery_waits_while_an_earlier_volume_goes(api: Api, recovering: FakeDriver) -> None:
    """E-252: it tries again every 5 s and counts no attempt."""
    row().write(retiring="sbx-abcdefghijklmnop-g9")
    waiting = operation("recover")
    recoveries.advance(waiting.id, tenant="local")
    assert (row().observed, row().volume_gen) == ("lost", 0)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.attempt) == ("queued", 0)


def test_recoveries_are_limited_to_three_an_hour(api: Api, recovering: FakeDriver, clock: Any) -> None:
    """E-252: the fourth loss within the hour stays lost."""
    for _ in range(2):
        recovered(api, recovering)
        lose(api, recovering)
    recovered(api, recovering)
    lose(api, recovering)
    assert not dispatch.unfinished(row(), "recover")
    clock.advance(minutes=61)
    assert refusal(api.post(f"{URL}/tools/bash", {"command": "true"}))[:2] == (409, "environment_lost")


def test_a_cancelled_recovery_leaves_it_lost(api: Api, recovering: FakeDriver) -> None:
    """E-252: before the new volume nothing was changed."""
    api.post(f"/v1/operations/{operation('recover').id}/cancel", {})
    assert (row().observed, row().volume_gen) == ("lost", 0)
    assert refusal(api.post(f"{URL}/tools/bash", {"command": "true"}))[:2] == (409, "environment_lost")


def test_without_the_wish_a_lost_pod_stays_lost(api: Api, pods: FakeDriver) -> None:
    """E-252: the default refuses."""
    api.put(URL, POD)
    run_pod(api, pods)
    version(api, "one")
    lose(api, pods)
    assert not Operation.objects.filter(kind="recover").exists()


# ------------------------------------------------------------------------------------------------ before a suspend


@pytest.fixture
def suspending(api: Api, pods: FakeDriver) -> FakeDriver:
    """A running pod whose disk is copied before each suspend."""
    api.put(URL, {**POD, "lifecycle": {"snapshot": "suspend", "idle": "1m"}})
    run_pod(api, pods)
    return pods


def idle(clock: Any) -> None:
    clock.advance(minutes=2)
    step.reconcile_when_due("demo", "idle")


def test_a_stop_is_preceded_by_a_copy_and_follows_it(api: Api, suspending: FakeDriver) -> None:
    """E-253, E-254: the pod runs until the copy ends; starts are refused; the event says what became of it."""
    made = operation_of(api.post(f"{URL}/stop", {}, **LATER))
    assert (row().desired, row().suspend_after) == ("running", "stop")
    assert refusal(api.post(f"{URL}/tools/bash", {"command": "true"})) == (409, "environment_busy", 5)
    assert snapshots.finish(begun(made.id), tree("one"))
    assert (row().desired, row().suspend_after, row().disk_op) == ("suspended", None, None)
    assert events()[-1] == ("suspended", {"reason": "stop", "snapshot": {"version": 1, "created": True}})
    assert api.get(f"{URL}/snapshots/1").json["cause"] == "suspend"


def test_a_stop_is_never_forgotten_when_the_copy_fails(api: Api, suspending: FakeDriver) -> None:
    """E-253: the volume is kept in any case, and the stop answers the view."""
    made = operation_of(api.post(f"{URL}/stop", {}, **LATER))
    operations.fail(begun(made.id), DiskCopyFailed("no room"))
    assert events()[-1] == ("suspended", {"reason": "stop", "snapshot": {"failed": "disk_copy_failed"}})
    assert row().desired == "suspended"


def test_a_worker_that_died_takes_the_stop_with_it_only_for_a_while(
    api: Api, suspending: FakeDriver, clock: Any
) -> None:
    """E-253: the next attempt does the same."""
    made = operation_of(api.post(f"{URL}/stop", {}, **LATER))
    begun(made.id)
    clock.advance(seconds=121)
    assert snapshots.finish(begun(made.id), tree("one"))
    assert row().desired == "suspended"


def test_an_idle_copy_yields_to_a_start(api: Api, suspending: FakeDriver, clock: Any) -> None:
    """E-301: the start is the newer wish: the copy is cancelled in its commit and nothing is suspended."""
    idle(clock)
    copying = operation("snapshot")
    assert (row().suspend_after, row().desired, copying.input) == ("idle", "running", {"suspend": "idle"})
    running = begun(copying.id)
    with call_runs("demo"):
        assert (row().suspend_after, row().disk_op) == (None, None)
    assert not snapshots.finish(running, tree("one"))
    copying.refresh_from_db()
    assert (copying.state, row().desired) == ("cancelled", "running")
    assert [type for type, _ in events()] == ["created", "running"]


def test_an_idle_copy_ends_in_the_suspend_and_is_no_use(api: Api, suspending: FakeDriver, clock: Any) -> None:
    """E-253: what the sweep of unused Environments reads does not move."""
    used = row().last_used_at
    idle(clock)
    idle(clock)
    assert Operation.objects.filter(kind="snapshot").count() == 1
    assert snapshots.finish(begun(operation("snapshot").id), tree("one"))
    assert events()[-1] == ("suspended", {"reason": "idle", "snapshot": {"version": 1, "created": True}})
    assert row().last_used_at == used


def test_a_start_after_the_lease_lapsed_takes_the_stop_back(api: Api, suspending: FakeDriver, clock: Any) -> None:
    """E-253: only then nothing is suspended."""
    made = operation_of(api.post(f"{URL}/stop", {}, **LATER))
    clock.advance(seconds=121)
    with call_runs("demo"):
        pass
    made.refresh_from_db()
    assert (made.state, row().desired, row().suspend_after) == ("cancelled", "running", None)


def test_a_stopped_pod_is_woken_for_a_snapshot(api: Api, pods: FakeDriver) -> None:
    """E-123: asked like a start; the copy waits for its Engine."""
    api.put(URL, POD)
    run_pod(api, pods)
    api.post(f"{URL}/stop", {})
    step.reconcile_pod("demo")
    running = begun(asked(api, f"{URL}/snapshots").id)
    assert (row().desired, waits.look(running)) == ("running", None)
    run_pod(api, pods)
    place = waits.look(running)
    assert place is not None
    assert snapshots.finish(running, tree("one"))
    assert row().desired == "running"


def operation_of(answer: Any) -> Operation:
    assert answer.status == 202, answer.json
    return Operation.objects.get(pk=answer.json["id"])
