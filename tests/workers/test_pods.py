"""A pod's life through the reconcile step, the join and the scripted Driver: rows, events and calls of the Driver."""

from __future__ import annotations

from typing import Any

import pytest

from environments.compute.fake import FakeDriver
from environments.models import Environment
from nylorun.record.models import Event, OutboxMessage
from nylorun.record.outbox import Message
from tests.support.client import Api
from workers.steps import pods as step

URL = "/v1/environments/demo"


def types(id: str = "demo") -> list[str]:
    return list(Event.objects.filter(stream=id).order_by("seq").values_list("type", flat=True))


def row() -> Environment:
    return Environment.objects.get(pk="demo")


def join(api: Api, pods: FakeDriver, **changed: Any) -> Any:
    """The join of the pod that the scripted Driver runs now."""
    name = str(row().k8s_name)
    machine = pods.machines[name]
    body = {
        "environmentId": "demo",
        "podUid": machine.pod_uid,
        "joinToken": machine.token,
        "volumeId": machine.volume_id,
        "address": f"unix:/fake/{name}",
        **changed,
    }
    return api.with_headers(Authorization=None).post("/v1/engine/join", body)


@pytest.fixture
def running(api: Api, pods: FakeDriver) -> FakeDriver:
    """A pod that was made, applied and joined."""
    api.put(URL, {"kind": "pod"})
    step.reconcile_pod("demo")
    assert join(api, pods).status == 200
    step.reconcile_pod("demo")
    return pods


def test_a_new_pod_is_made_at_once_and_runs_when_its_engine_joins(api: Api, pods: FakeDriver) -> None:
    """E-03, E-113, E-217, E-257: outbox row with the create, apply, join pushes running."""
    api.put(URL, {"kind": "pod"})
    assert OutboxMessage.objects.get().dedupe_key == "reconcile:demo"
    assert row().idle_at is not None
    step.reconcile_pod("demo")
    assert api.get(URL).json["pod"]["observed"] == "creating"
    answer = join(api, pods)
    assert answer.status == 200
    assert set(answer.json) == {"hostToken", "egressToken", "epoch", "expiresIn", "jwks"}
    assert (answer.json["epoch"], answer.json["expiresIn"]) == (1, 900)
    view = api.get(URL).json
    assert (view["state"], view["pod"]["hostEpoch"], "suspendAt" in view) == ("running", 1, True)
    step.reconcile_pod("demo")
    assert OutboxMessage.objects.count() == 0
    assert types() == ["created", "running"]
    assert pods.calls["apply"] == 1


def test_stop_and_wake_keep_the_volume(api: Api, running: FakeDriver) -> None:
    """E-98, E-86, E-97: suspended is written with the request; the wake starts another pod on the same volume."""
    name = str(row().k8s_name)
    volume = running.volumes[name]
    first = row().pod_uid
    assert api.post(f"{URL}/stop", {}).json["pod"]["desired"] == "suspended"
    assert types()[-1] == "suspended"
    step.reconcile_pod("demo")
    assert api.get(URL).json["pod"]["observed"] == "suspended"
    again = api.post(f"{URL}/stop", {})
    assert (again.status, types().count("suspended")) == (200, 1)
    woken = api.post(f"{URL}/wake", {}, Prefer="respond-async")
    assert (woken.status, woken.json["state"]) == (202, "creating")
    step.reconcile_pod("demo")
    assert join(api, running).status == 200
    assert api.post(f"{URL}/wake", {}).status == 200
    assert (running.volumes[name], row().k8s_name) == (volume, name)
    assert row().pod_uid != first
    assert types() == ["created", "running", "suspended", "running"]


def test_reset_makes_a_new_volume_under_a_new_name_and_retires_the_old(api: Api, running: FakeDriver) -> None:
    """E-99: generation, name and join token are new; a second reset waits for the first's old volume."""
    old = str(row().k8s_name)
    digest = row().join_token_hash
    view = api.post(f"{URL}/reset", {}).json
    assert (view["pod"]["volumeGeneration"], view["state"]) == (1, "creating")
    busy = api.post(f"{URL}/reset", {})
    assert (busy.status, busy.json["code"], busy.headers["Retry-After"]) == (409, "environment_busy", "5")
    step.reconcile_pod("demo")
    assert old not in running.volumes
    assert row().k8s_name == old.replace("-g0", "-g1")
    assert row().join_token_hash not in (digest, None)
    assert join(api, running).status == 200
    step.reconcile_pod("demo")
    assert row().retiring is None
    assert types() == ["created", "running", "reset", "running"]
    assert api.get(f"{URL}/events?type=environment.reset").json["events"][0]["payload"] == {"volumeGeneration": 1}


def test_delete_takes_object_pod_and_volume_and_then_the_row(api: Api, running: FakeDriver) -> None:
    """E-37, E-112, E-279: the id is free once nothing is left."""
    api.delete(URL)
    assert api.put(URL, {"kind": "pod"}).status == 409
    step.reconcile_pod("demo")
    assert (running.machines, running.volumes) == ({}, {})
    assert not Environment.objects.filter(pk="demo").exists()
    assert OutboxMessage.objects.count() == 0
    assert api.put(URL, {"kind": "pod"}).status == 201


def test_a_pod_that_ended_is_made_again_on_its_volume(api: Api, running: FakeDriver) -> None:
    """E-108, pain 31: relaunched, same volume, higher epoch."""
    name = str(row().k8s_name)
    volume = running.volumes[name]
    running.kill_pod(name)
    step.reconcile_pod("demo")
    assert join(api, running).status == 200
    assert (running.volumes[name], types()) == (volume, ["created", "running", "relaunched"])
    assert row().host_epoch == 3


def test_a_pod_whose_volume_is_gone_is_lost_until_reset(api: Api, running: FakeDriver) -> None:
    """E-87, E-108, E-281: refuses calls and wakes with its reason; PUT still works; reset leads out."""
    running.lose_volume(str(row().k8s_name))
    step.reconcile_pod("demo")
    view = api.get(URL).json
    assert (view["state"], view["pod"]["observed"], view["pod"]["reason"]) == ("stopped", "lost", "volume_missing")
    refused = api.post(f"{URL}/tools/bash", {"command": "true"})
    assert (refused.status, refused.json["code"]) == (409, "environment_lost")
    assert refused.json["details"] == {"reason": "volume_missing"}
    assert api.post(f"{URL}/wake", {}).json["code"] == "environment_lost"
    assert api.post(f"{URL}/stop", {}).status == 200
    assert api.put(URL, {"labels": {"a": "b"}}).status == 200
    assert api.post(f"{URL}/reset", {}).status == 200
    step.reconcile_pod("demo")
    assert join(api, running).status == 200
    assert types() == ["created", "running", "lost", "reset", "running"]


def test_a_join_with_another_volume_is_lost(api: Api, running: FakeDriver) -> None:
    """E-108: the volume was replaced under the pod."""
    assert join(api, running, volumeId="another").status == 401
    assert row().observed == "lost"
    assert types()[-1] == "lost"


@pytest.mark.parametrize(
    "changed",
    [
        {"joinToken": "wrong"},
        {"podUid": "11111111-1111-1111-1111-111111111111"},
        {"address": "unix:/elsewhere"},
        {"environmentId": "other"},
    ],
)
def test_a_wrong_join_is_one_opaque_401(api: Api, running: FakeDriver, changed: dict[str, str]) -> None:
    """E-110, E-282: token, pod and address are checked; the answer says nothing."""
    before = row().host_epoch
    answer = join(api, running, **changed)
    assert (answer.status, answer.json["code"], answer.json["message"]) == (401, "join_refused", "Join refused")
    assert row().host_epoch == before


def test_a_malformed_join_is_400_and_a_silent_driver_503(api: Api, running: FakeDriver) -> None:
    """E-110."""
    assert join(api, running, podUid="../x").status == 400
    running.silent = True
    assert join(api, running).status == 503


def test_a_renewal_keeps_the_epoch_and_is_refused_when_the_row_moved(api: Api, running: FakeDriver) -> None:
    """E-94, E-111: tokens of an earlier epoch are refused."""
    token = join(api, running).json["hostToken"]
    renewed = api.with_headers(Authorization=f"Bearer {token}").post("/v1/engine/renew", {})
    assert (renewed.status, renewed.json["epoch"]) == (200, row().host_epoch)
    api.post(f"{URL}/stop", {})
    refused = api.with_headers(Authorization=f"Bearer {token}").post("/v1/engine/renew", {})
    assert (refused.status, refused.json["code"]) == (401, "join_refused")


def test_a_host_token_is_no_application_key(api: Api, running: FakeDriver) -> None:
    """E-111: told apart by typ and aud; elsewhere it is an unknown credential."""
    token = join(api, running).json["egressToken"]
    assert api.with_headers(Authorization=f"Bearer {token}").post("/v1/engine/renew", {}).status == 401
    assert api.with_headers(Authorization=f"Bearer {token}").get(URL).status == 404


def test_an_idle_pod_is_suspended_and_a_used_one_is_not(api: Api, running: FakeDriver, clock: Any) -> None:
    """E-106, E-107: the Recipe's or the Tenant's idle time after the last use; reads are not use."""
    clock.advance(minutes=14)
    api.get(URL)
    step.scan_idle()
    assert row().desired == "running"
    clock.advance(minutes=1)
    step.scan_idle()
    assert (row().desired, types()[-1]) == ("suspended", "suspended")
    step.reconcile_pod("demo")
    assert row().observed == "suspended"


def test_a_start_that_never_gets_ready_fails_and_the_next_wake_tries_again(
    api: Api, pods: FakeDriver, clock: Any
) -> None:
    """E-105, E-280, pains 2, 4, 16: failed holds no machine, and the disk stays usable."""
    pods.starts_ready = False
    api.put(URL, {"kind": "pod"})
    step.reconcile_pod("demo")
    clock.advance(minutes=6)
    step.reconcile_pod("demo")
    assert (row().observed, row().reason) == ("failed", "start_timeout")
    assert pods.machines[str(row().k8s_name)].pod_uid is None
    pods.starts_ready = True
    assert api.post(f"{URL}/wake", {}, Prefer="wait=0").json["state"] == "creating"
    step.reconcile_pod("demo")
    assert join(api, pods).status == 200
    assert types() == ["created", "failed", "running"]


def test_a_silent_driver_changes_nothing_and_is_asked_later_and_later(api: Api, running: FakeDriver) -> None:
    """Pain 33: no answer is no loss; the outbox row keeps the next look."""
    before = Environment.objects.values().get(pk="demo")
    running.silent = True
    step.reconcile_pod("demo")
    assert Environment.objects.values().get(pk="demo") == before
    assert OutboxMessage.objects.get().payload["misses"] == 1
    step.reconcile_pod("demo")
    assert OutboxMessage.objects.get().payload["misses"] == 2
    running.silent = False
    step.reconcile_pod("demo")
    assert OutboxMessage.objects.count() == 0


def test_a_fence_that_moves_while_the_driver_is_asked_is_decided_again(api: Api, running: FakeDriver) -> None:
    """E-103: a stop between the look and the write-back wins; nothing stale is written."""

    def stop_meanwhile(call: str, name: str) -> None:
        running.before = lambda call, name: None
        api.post(f"{URL}/stop", {})

    running.kill_pod(str(row().k8s_name))
    running.before = stop_meanwhile
    step.reconcile_pod("demo")
    assert (row().desired, row().observed) == ("suspended", "suspended")
    assert running.machines[str(row().k8s_name)].pod_uid is None


def test_a_wish_written_while_its_task_runs_is_not_deleted(api: Api, running: FakeDriver) -> None:
    """E-286: the row goes only while posts is what the task read."""
    api.post(f"{URL}/stop", {})

    def wake_meanwhile(call: str, name: str) -> None:
        if call == "apply":
            running.before = lambda call, name: None
            api.post(f"{URL}/wake", {}, Prefer="wait=0")

    running.before = wake_meanwhile
    step.reconcile_pod("demo")
    assert row().desired == "running"
    assert OutboxMessage.objects.get().dedupe_key == "reconcile:demo"
    step.reconcile_pod("demo")
    assert join(api, running).status == 200


def test_reconcile_twice_changes_nothing_more(api: Api, running: FakeDriver) -> None:
    """E-270: safe to run twice and at any time."""
    before = Environment.objects.values().get(pk="demo")
    applied = running.calls["apply"]
    for _ in range(3):
        step.reconcile_pod("demo")
    assert Environment.objects.values().get(pk="demo") == before
    assert running.calls["apply"] == applied
    step.reconcile_pod("never-made")


def test_a_start_is_measured_from_the_wish_to_the_join(api: Api, pods: FakeDriver, clock: Any) -> None:
    """The wake histogram of ``/metrics``; a pod that joins again adds nothing."""

    def waited() -> tuple[float, float]:
        lines = api.get("/metrics").body.decode().splitlines()
        of = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("nylorun_wake_seconds_")}
        return of["nylorun_wake_seconds_count"], of["nylorun_wake_seconds_sum"]

    before = waited()
    api.put(URL, {"kind": "pod"})
    step.reconcile_pod("demo")
    clock.advance(seconds=3)
    assert join(api, pods).status == 200
    assert join(api, pods).status == 200
    count, total = waited()
    assert count == before[0] + 1
    assert 3 <= total - before[1] < 4


def test_messages_do_not_multiply(api: Api, pods: FakeDriver, handed: list[Message], clock: Any) -> None:
    """E-115: one pending run per Environment: of ten messages for a row that waits, one looks and one follows."""
    pods.starts_ready = False
    api.put(URL, {"kind": "pod"})
    step.reconcile_when_due("demo")
    handed.clear()
    asked = pods.calls["status"]
    for _ in range(10):
        step.reconcile_when_due("demo")
    assert (handed, pods.calls["status"]) == ([], asked)
    clock.advance(seconds=1.8)
    for _ in range(10):
        step.reconcile_when_due("demo")
    assert [message.delay for message in handed] == [2.0]
    assert pods.calls["status"] == asked + 1
