"""The sweep: what no message reached; every row looked at again under its lock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from environments.compute.contract import Listing
from environments.compute.fake import FakeDriver
from environments.models import Effect, Environment
from environments.services import rearm, sweep
from nylorun.db.tx import database_now
from nylorun.record.models import Event, OutboxMessage
from tests.support.client import Api
from tests.workers.test_pods import join
from workers.steps import pods as step
from workers.steps import sweeps

URL = "/v1/environments/demo"


def exists() -> bool:
    return Environment.objects.filter(pk="demo").exists()


def test_unused_for_delete_after_it_is_deleted_with_its_reason(api: Api, clock: Any) -> None:
    """E-173, E-174, E-276: counts from lastUsedAt; deleteAt is when the sweep does it; reads are not use."""
    view = api.put(URL, {"kind": "none", "lifecycle": {"deleteAfter": "1h"}}).json
    clock.advance(minutes=59)
    api.get(URL)
    sweeps.delete_unused()
    assert exists()
    clock.advance(minutes=1)
    sweeps.delete_unused()
    assert not exists()
    event = Event.objects.get(type="deleted")
    assert event.payload == {"reason": "unused"}
    assert view["deleteAt"] <= event.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize("use", ["put", "stop", "reset", "call"])
def test_use_starts_the_time_again(api: Api, pods: FakeDriver, clock: Any, use: str) -> None:
    """E-173, pain 17: a use one second before the sweep keeps it."""
    api.put(URL, {"kind": "pod", "lifecycle": {"deleteAfter": "1h"}})
    step.reconcile_pod("demo")
    join(api, pods)
    clock.advance(minutes=60)
    acts = {
        "put": lambda: api.put(URL, {}),
        "stop": lambda: api.post(f"{URL}/stop", {}),
        "reset": lambda: api.post(f"{URL}/reset", {}),
        "call": lambda: api.post(f"{URL}/wake", {}),
    }
    assert acts[use]().status == 200
    clock.advance(seconds=1)
    sweeps.delete_unused()
    assert Environment.objects.live().filter(pk="demo").exists()
    assert Environment.objects.get(pk="demo").delete_check_at > database_now()


def test_a_busy_one_waits(api: Api, clock: Any) -> None:
    """E-173: busy: looked at again a minute later."""
    api.put(URL, {"lifecycle": {"deleteAfter": "1h"}})
    row = Environment.objects.get(pk="demo")
    clock.advance(hours=2)
    now = database_now()
    Effect.objects.create(
        id="ef_1", environment_id="demo", uid=row.uid, tool="bash", hash="", status="invoking",
        lease_until=now + timedelta(hours=5), started_at=now,
    )  # fmt: skip
    sweeps.delete_unused()
    assert exists()
    assert Environment.objects.get(pk="demo").delete_check_at > now + timedelta(seconds=50)


def test_a_missed_hour_is_caught_up_in_one_sweep(api: Api, clock: Any) -> None:
    """Pain 6: no beat for an hour, then one pass deletes all that was due."""
    for number in range(5):
        api.put(f"/v1/environments/e{number}", {"kind": "none", "lifecycle": {"deleteAfter": "1m"}})
    clock.advance(hours=1)
    sweeps.delete_unused()
    assert Environment.objects.count() == 0


def test_a_failing_step_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, db: Any) -> None:
    """E-181: the first error is raised at the end."""
    done = []

    def broken() -> None:
        raise RuntimeError("first")

    def also_broken() -> None:
        raise RuntimeError("second")

    monkeypatch.setattr(sweeps, "STEPS", (broken, lambda: done.append(1), also_broken, lambda: done.append(2)))
    monkeypatch.setattr(sweeps, "STEPS", tuple(_named(one) for one in sweeps.STEPS))
    with pytest.raises(RuntimeError, match="first"):
        sweeps.sweep()
    assert done == [1, 2]


def _named(act: Any) -> Any:
    act.__name__ = getattr(act, "__name__", "step")
    return act


def test_settings_arm_running_pods_timers_again(api: Api, pods: FakeDriver, clock: Any) -> None:
    """E-175, E-176: a lowered limit is felt by pods that are idle now, whose Recipe keeps its own smaller time."""
    api.put(URL, {"kind": "pod"})
    api.put("/v1/environments/quick", {"kind": "pod", "lifecycle": {"idle": "1m"}})
    before = Environment.objects.get(pk="demo").idle_at
    api.put("/v1/tenant/sandbox", {"limits": {"idle": "2m"}})
    rearm.rearm_all()
    row, quick = Environment.objects.get(pk="demo"), Environment.objects.get(pk="quick")
    assert before is not None
    assert before - row.idle_at == timedelta(minutes=13)
    assert quick.idle_at - quick.last_active_at == timedelta(minutes=1)
    assert not OutboxMessage.objects.filter(topic="sandbox.rearm").exists()


def test_a_stale_row_is_looked_at_again(api: Api, pods: FakeDriver, clock: Any) -> None:
    """A lost message costs a pod no more than STALE_ROW."""
    api.put(URL, {"kind": "pod"})
    OutboxMessage.objects.all().delete()
    sweeps.stale_pods()
    assert OutboxMessage.objects.count() == 0
    clock.advance(seconds=61)
    sweeps.stale_pods()
    assert OutboxMessage.objects.get().dedupe_key == "reconcile:demo"


def test_a_quiet_engine_is_pinged_and_its_pod_looked_at(api: Api, pods: FakeDriver, clock: Any) -> None:
    """E-108: an Engine that missed its renewal and does not answer gets its pod looked at."""
    api.put(URL, {"kind": "pod"})
    step.reconcile_pod("demo")
    join(api, pods)
    step.reconcile_pod("demo")
    clock.advance(minutes=5)
    assert sweep.quiet_engines() == []
    clock.advance(minutes=2)
    sweeps.stale_pods()
    assert OutboxMessage.objects.get().dedupe_key == "reconcile:demo"


def test_objects_no_row_names_go_and_their_volume_later(api: Api, pods: FakeDriver) -> None:
    """E-289: the machine after ten minutes, its volume after a week; known ones never."""
    api.put(URL, {"kind": "pod"})
    step.reconcile_pod("demo")
    known = str(Environment.objects.get(pk="demo").k8s_name)
    ages = {"sbx-young-g0": 599.0, "sbx-old-g0": 601.0}
    week = 7 * 86_400.0
    listing = Listing(
        objects={known: 9e9, **ages}, volumes={known: 9e9, **ages, "sbx-kept-g0": week - 1, "sbx-over-g0": week + 1}
    )
    pods.list = lambda: listing  # type: ignore[method-assign]
    gone: list[tuple[str, bool]] = []
    pods.delete = lambda name, keep_volume=False: gone.append((name, keep_volume))  # type: ignore[method-assign]
    sweeps.orphaned_objects()
    assert gone == [("sbx-old-g0", True), ("sbx-over-g0", False)]


def test_a_driver_that_does_not_answer_loses_nothing(api: Api, pods: FakeDriver) -> None:
    """E-289: no answer: nothing is concluded."""
    pods.silent = True
    sweeps.orphaned_objects()
    assert pods.calls["delete"] == 0
