"""Setup: input files and commands before the first call on a new disk, once per volume, under a lease."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from environments.compute.fake import FakeDriver
from environments.models import Environment, Operation
from environments.services import dispatch, operations, setups
from environments.services.operations import Standing
from environments.services.readiness import ready
from environments.services.setups import CommandFailed
from nylorun.record.models import Event, OutboxMessage
from tests.support.client import Api
from tests.support.engines import ScriptedEngine, scripted_engine
from tests.workers.test_pods import join
from workers.steps import operations as setup
from workers.steps import pods as step

URL = "/v1/environments/demo"
CONTENT = b"hello"
SHA = hashlib.sha256(CONTENT).hexdigest()


def row() -> Environment:
    return Environment.objects.get(pk="demo")


def answer(code: int = 0) -> Any:
    """An Engine that takes files and ends every command with this code."""

    def script(header: dict[str, Any], body: bytes) -> dict[str, Any]:
        if header["op"] == "write":
            digest = "sha256:" + hashlib.sha256(body).hexdigest()
            return {"output": {"path": header["args"]["path"], "size": len(body), "sha256": digest, "created": True}}
        text = b"no such package\n" if code else b""
        output = {"exitCode": code, "timedOut": False, "durationMs": 1, "stdoutBytes": len(text), "stderrBytes": 0}
        return {"stdout": text, "output": output}

    return script


@pytest.fixture
def joined(api: Api, pods: FakeDriver) -> Any:
    """A joined pod whose Recipe has two files and two commands; its Engine is scripted."""
    api.put(f"/v1/files/sha256:{SHA}", CONTENT)
    body = {"kind": "pod", "setup": ["one", "two"], "files": [{"path": "in", "files": {"a.txt": f"sha256:{SHA}"}}]}
    assert api.put(URL, body).status == 201
    step.reconcile_pod("demo")
    assert join(api, pods).status == 200
    with scripted_engine(answer()) as engine:
        Environment.objects.filter(pk="demo").update(engine_address=engine.address)
        yield engine


def test_files_come_first_then_each_command_in_order(joined: ScriptedEngine) -> None:
    """E-59, E-118: once per volume; until it is done no call is sent."""
    operation = Operation.objects.get()
    assert (operation.kind, operation.state, operation.attempt) == ("setup", "queued", 0)
    assert not ready(row())
    setup.run_operation(operation.id)
    asked = [(call["op"], call["args"].get("command") or call["args"]["path"]) for call in joined.calls]
    assert asked == [("write", "in/a.txt"), ("bash", "one"), ("bash", "two")]
    operation.refresh_from_db()
    assert (operation.state, operation.attempt, operation.lease_until) == ("succeeded", 1, None)
    assert (row().setup_done_gen, row().disk_op, ready(row())) == (0, None, True)
    setup.run_operation(operation.id)
    assert len(joined.calls) == 3


def test_a_failed_command_fails_the_pod_and_the_next_start_begins_again(
    api: Api, pods: FakeDriver, joined: ScriptedEngine
) -> None:
    """E-118, pain 4: reason with the output's tail, event with the command; the pod holds no machine."""
    joined.script = answer(3)
    setup.run_operation(Operation.objects.get().id)
    assert row().observed == "failed"
    assert row().reason == "setup_failed: command 1 exited 3\nno such package\n"
    event = Event.objects.get(type="failed")
    assert event.payload["setup"] == {"command": 1, "exitCode": 3, "output": "no such package\n"}
    operation = Operation.objects.get()
    assert (operation.state, operation.error["code"]) == ("failed", "setup_failed")
    step.reconcile_pod("demo")
    assert pods.machines[str(row().k8s_name)].pod_uid is None
    refused = api.post(f"{URL}/stop", {})
    assert refused.status == 200
    api.post(f"{URL}/wake", {}, Prefer="wait=0")
    step.reconcile_pod("demo")
    assert join(api, pods).status == 200
    again = Operation.objects.get(state="queued")
    assert (again.kind, again.attempt) == ("setup", 0)


def test_an_engine_that_does_not_answer_puts_it_back_and_after_five_attempts_fails(
    joined: ScriptedEngine, clock: Any
) -> None:
    """E-118: infrastructure is tried again with a growing delay; attempts are bounded."""
    joined.script = lambda header, body: "refuse"
    operation = Operation.objects.get()
    for attempt in range(1, 5):
        setup.run_operation(operation.id)
        operation.refresh_from_db()
        assert (operation.state, operation.attempt) == ("queued", attempt)
        assert row().disk_op is None
    setup.run_operation(operation.id)
    operation.refresh_from_db()
    assert (operation.state, operation.error["code"], row().observed) == ("failed", "operation_interrupted", "failed")


def test_work_with_a_live_lease_is_somebody_elses_and_a_lapsed_one_is_taken_over(
    joined: ScriptedEngine, clock: Any
) -> None:
    """E-270, pains 18 and 20: the late attempt writes nothing."""
    id = Operation.objects.get().id
    first = operations.begin(id)
    assert first is not None
    assert operations.begin(id) is None
    clock.advance(seconds=121)
    second = operations.begin(id)
    assert second is not None
    assert (first.attempt, second.attempt) == (1, 2)
    assert operations.renew(first) is Standing.LOST
    assert not setups.succeed(first)
    assert not setups.fail(first, CommandFailed(1, 1, ""))
    assert not operations.put_back(first, "late")
    assert (Operation.objects.get().state, row().observed) == ("running", "running")
    assert operations.renew(second) is Standing.OURS
    assert setups.succeed(second)


def test_the_sweep_hands_lapsed_work_out_again(joined: ScriptedEngine, clock: Any) -> None:
    """A dead worker costs its lease, never the work."""
    id = Operation.objects.get().id
    operations.begin(id)
    OutboxMessage.objects.all().delete()
    assert dispatch.hand_out_due() == 0
    clock.advance(minutes=3)
    assert dispatch.hand_out_due() == 1
    assert OutboxMessage.objects.get().payload == {"operationId": id}


def test_a_reset_cancels_it_and_the_new_volume_gets_its_own(api: Api, pods: FakeDriver, joined: ScriptedEngine) -> None:
    """E-59, pain 40: the running attempt finds its fence moved; the new disk is set up again."""
    id = Operation.objects.get().id
    running = operations.begin(id)
    assert running is not None
    assert api.post(f"{URL}/reset", {}).status == 200
    assert Operation.objects.get().state == "cancelled"
    assert not setups.succeed(running)
    assert row().setup_done_gen is None
    step.reconcile_pod("demo")
    assert join(api, pods).status == 200
    assert Operation.objects.filter(state="queued").count() == 1


def test_a_delete_cancels_it(api: Api, joined: ScriptedEngine) -> None:
    """Pain 40: a delete leaves no work behind."""
    running = operations.begin(Operation.objects.get().id)
    assert running is not None
    assert api.delete(URL).json["deleted"]
    assert Operation.objects.get().state == "cancelled"
    assert not setups.succeed(running)


def test_the_seed_lease_is_shown_and_does_not_refuse_a_stop(api: Api, joined: ScriptedEngine) -> None:
    """E-27: disk.operation tells what holds the disk; setup's lease refuses nobody."""
    id = Operation.objects.get().id
    operations.begin(id)
    shown = api.get(URL).json["disk"]["operation"]
    assert (shown["kind"], shown["operationId"]) == ("seed", id)
    assert api.post(f"{URL}/stop", {}).status == 200
