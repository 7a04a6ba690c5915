"""The reconcile decision as a table: row and status in, step out. No database."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from environments.compute.contract import SandboxStatus
from environments.reconcile import Apply, Delete, Look, Step, World, decide

NOW = datetime(2030, 1, 1, tzinfo=UTC)
UID = uuid.UUID(int=7)
NAME = "sbx-ub6g5m7mvjlct6r7-g0"


@dataclass
class Row:
    """A pod's row as the rules read it."""

    id: str = "demo"
    kind: str = "pod"
    uid: uuid.UUID = UID
    recipe: Any = field(default_factory=lambda: {"harness": "nylorun", "lifecycle": {}})
    applied: Any = field(default_factory=lambda: {"harness": "nylorun", "lifecycle": {}})
    version: int = 1
    disk_op: Any = None
    desired: str | None = "running"
    observed: str | None = "running"
    rev: int | None = 3
    host_epoch: int | None = 2
    volume_gen: int | None = 0
    k8s_name: str | None = NAME
    retiring: str | None = None
    pod_uid: str | None = "pod-1"
    volume_id: str | None = "vol-1"
    join_token_hash: str | None = "x"
    last_active_at: datetime | None = NOW
    created_at: datetime = NOW - timedelta(hours=1)
    started_at: datetime | None = NOW
    idle_at: datetime | None = None
    image_digest: str | None = None
    image_digest_for: str | None = None
    unenforced: Any = None


SEEN = SandboxStatus(
    NAME, exists=True, volume="present", uid=str(UID), mode="Running", ready=True, pod_uid="pod-1",
    volume_id="vol-1", op_id=f"{NAME}.r3",
)  # fmt: skip
GONE = SandboxStatus(NAME, exists=False, volume="missing")


def look(row: Row, status: SandboxStatus | None = SEEN, retiring: SandboxStatus | None = None, **more: Any) -> Step:
    defaults: dict[str, Any] = {
        "now": NOW, "idle": timedelta(minutes=15), "start_deadline": timedelta(minutes=5), "busy": False,
    }  # fmt: skip
    return decide(Look(row, World(status, retiring), **{**defaults, **more}))


def test_a_running_pod_as_wanted_needs_nothing() -> None:
    """E-102: step 10: ready and joined."""
    step = look(Row())
    assert (step.patch, step.events, step.actions, step.again) == ({}, [], [], None)


def test_no_answer_concludes_nothing() -> None:
    """E-102 step 2, pain 33: unknown is not gone; look again in 5 s."""
    step = look(Row(), None)
    assert (step.patch, step.actions, step.again, step.silent) == ({}, [], 5.0, True)


def test_a_new_pod_is_applied_with_a_new_join_token() -> None:
    """E-102 step 9, E-109: the object did not exist: the token is rotated; podUid is cleared before."""
    row = Row(observed="creating", pod_uid=None, volume_id=None, rev=1)
    step = look(row, GONE)
    assert step.actions == [Apply("Running", rotate=True)]
    assert step.patch == {"pod_uid": None}


def test_a_higher_rev_is_applied_without_a_new_token() -> None:
    """E-104: the op id differs and the object exists."""
    step = look(Row(rev=4, observed="suspended"), replace(SEEN, mode="Suspended", pod_uid=None, ready=False))
    assert step.actions == [Apply("Running", rotate=False)]
    assert step.patch == {"pod_uid": None, "observed": "creating", "started_at": NOW, "reason": None}


def test_a_stopped_pod_is_applied_suspended_and_then_seen_suspended() -> None:
    """E-98, E-102 steps 9 and 11."""
    row = Row(desired="suspended", rev=4)
    assert look(row).actions == [Apply("Suspended", rotate=False)]
    still = look(row, replace(SEEN, op_id=f"{NAME}.r4"))
    assert (still.patch, still.again) == ({}, 2.0)
    done = look(row, replace(SEEN, op_id=f"{NAME}.r4", pod_uid=None, ready=False))
    assert (done.patch, done.again) == ({"observed": "suspended"}, None)


def test_a_vanished_object_is_made_again_on_its_volume_and_noted_as_relaunch() -> None:
    """E-108, pain 31: no loss while the volume is there; the epoch moves; the earlier pod stays noted."""
    step = look(Row(), SandboxStatus(NAME, exists=False, volume="present", volume_id="vol-1"))
    assert step.actions == [Apply("Running", rotate=True)]
    assert step.patch == {"observed": "creating", "started_at": NOW, "host_epoch": 3}
    assert step.events == []


def test_a_pod_that_died_is_started_again_and_its_calls_end() -> None:
    """E-108: the object is there, its pod is not."""
    step = look(Row(), replace(SEEN, pod_uid=None, ready=False))
    assert step.actions == [Apply("Running", rotate=False)]
    assert step.patch == {"observed": "creating", "started_at": NOW, "host_epoch": 3}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (replace(SEEN, volume="missing", volume_id=None), "volume_missing"),
        (replace(SEEN, volume_id="other"), "volume_replaced"),
        (replace(SEEN, volume_id=None), "volume_missing"),
    ],
)
def test_a_joined_pod_whose_volume_is_gone_or_another_is_lost(status: SandboxStatus, reason: str) -> None:
    """E-108, E-281: lost with a reason; the object goes, a volume that is there is kept."""
    step = look(Row(), status)
    assert step.patch["observed"] == "lost"
    assert step.patch["host_epoch"] == 3
    assert step.events == [("lost", {"reason": reason})]
    assert step.actions == [Delete(NAME, keep_volume=True)]


def test_a_pod_that_never_joined_is_not_lost() -> None:
    """E-108: without a join nothing was on the volume."""
    row = Row(observed="creating", pod_uid=None, volume_id=None)
    assert look(row, GONE).patch.get("observed") != "lost"


def test_a_lost_pod_is_left_alone_once_its_object_is_gone() -> None:
    """E-102 step 4: only a new volume or a delete leaves lost."""
    row = Row(observed="lost")
    assert look(row, replace(GONE, volume="present")).actions == []
    assert look(row, SEEN).actions == [Delete(NAME, keep_volume=True)]


def test_a_deleted_row_goes_when_everything_is_gone() -> None:
    """E-112: object, pod, volume and retiring."""
    row = Row(desired="deleted", observed="deleting")
    assert look(row, SEEN).actions == [Delete(NAME)]
    assert look(row, replace(GONE, volume="present")).actions == [Delete(NAME)]
    assert look(row, GONE).remove
    waiting = look(replace(row, retiring="sbx-old-g0"), GONE, SEEN)
    assert (waiting.remove, waiting.actions) == (False, [Delete("sbx-old-g0")])
    assert look(replace(row, retiring="sbx-old-g0"), GONE, GONE).remove
    assert not look(replace(row, retiring="sbx-old-g0"), GONE, None).remove


def test_a_retiring_volume_is_deleted_beside_the_new_one() -> None:
    """E-102 step 1."""
    step = look(Row(retiring="sbx-old-g0"), SEEN, replace(SEEN, name="sbx-old-g0"))
    assert step.actions == [Delete("sbx-old-g0")]
    assert look(Row(retiring="sbx-old-g0"), SEEN, GONE).patch == {"retiring": None}


def test_an_object_of_an_earlier_row_is_deleted_and_never_adopted() -> None:
    """E-279: another uid."""
    row = Row(observed="creating", pod_uid=None, volume_id=None)
    assert look(row, replace(SEEN, uid=str(uuid.UUID(int=8)))).actions == [Delete(NAME)]


def test_an_object_of_somebody_else_fails_the_start_and_is_not_touched() -> None:
    """Pain 32: name_taken."""
    step = look(Row(observed="creating"), replace(SEEN, reason="name_taken"))
    assert step.patch["observed"] == "failed"
    assert step.actions == []


def test_idle_suspends_when_due_and_moves_the_timer_when_not() -> None:
    """E-106: due is the later of use and start plus the idle time."""
    early = look(Row(last_active_at=NOW - timedelta(minutes=14)), trigger="idle")
    assert (early.patch, early.events) == ({"idle_at": NOW + timedelta(minutes=1)}, [])
    due = look(Row(last_active_at=NOW - timedelta(minutes=15)), trigger="idle")
    assert due.events == [("suspended", {"reason": "idle"})]
    assert due.patch["desired"] == "suspended"
    assert due.again == 0


def test_a_busy_pod_is_never_suspended() -> None:
    """E-106: busy at the scan: nothing; the end arms the timer again."""
    step = look(Row(last_active_at=NOW - timedelta(hours=1)), trigger="idle", busy=True)
    assert (step.patch, step.events, step.actions) == ({}, [], [])


def test_any_lease_keeps_idle_away() -> None:
    """Idle suspend is refused by any lease, a lapsed one is none."""
    lease = {"kind": "seed", "operationId": "op", "attempt": 1, "until": (NOW + timedelta(minutes=1)).isoformat()}
    row = Row(last_active_at=NOW - timedelta(hours=1), disk_op=lease)
    assert look(row, trigger="idle").events == []
    lapsed = {**lease, "until": NOW.isoformat()}
    assert look(replace(row, disk_op=lapsed), trigger="idle").events != []


def test_a_start_past_its_deadline_fails_with_the_pods_reason() -> None:
    """E-105: failed holds no machine: rev and epoch move, the object is applied Suspended next."""
    row = Row(observed="creating", pod_uid=None, started_at=NOW - timedelta(minutes=5))
    step = look(row, replace(SEEN, ready=False, pod_uid="p", reason="crash_loop", message="exited 1"))
    assert step.events == [("failed", {"reason": "crash_loop: exited 1"})]
    assert (step.patch["observed"], step.patch["rev"], step.patch["host_epoch"]) == ("failed", 4, 3)
    applied = look(replace(row, observed="failed", rev=4), SEEN)
    assert applied.actions == [Apply("Suspended", rotate=False)]
    at_rest = look(replace(row, observed="failed", rev=4), replace(SEEN, op_id=f"{NAME}.r4", pod_uid=None, ready=False))
    assert (at_rest.patch, at_rest.actions, at_rest.again) == ({}, [], None)


def test_a_ready_pod_without_a_join_fails_at_the_deadline() -> None:
    """engine_missing: the join is what says running."""
    row = Row(observed="creating", pod_uid=None)
    assert look(row).again == 2.0
    late = look(replace(row, started_at=NOW - timedelta(minutes=6)))
    assert late.events == [("failed", {"reason": "engine_missing"})]


def test_the_first_digest_of_an_image_is_kept() -> None:
    """E-96: recorded at the first ready, not overwritten, again for another image."""
    seen = replace(SEEN, image_digest="x@sha256:1")
    assert look(Row(), seen).patch == {"image_digest": "x@sha256:1", "image_digest_for": None}
    assert look(Row(image_digest="x@sha256:0"), seen).patch == {}


def test_what_the_host_cannot_hold_is_said() -> None:
    """The view's unenforced list follows the Driver."""
    assert look(Row(), replace(SEEN, unenforced=("storage",))).patch == {"unenforced": ["storage"]}
    assert look(Row(unenforced=["storage"]), replace(SEEN, unenforced=("storage",))).patch == {}


STATES = [
    (desired, observed) for desired in ("running", "suspended", "deleted")
    for observed in ("creating", "running", "suspended", "lost", "failed", "deleting")
]  # fmt: skip
STATUSES = [
    None, GONE, SEEN, replace(GONE, volume="present"), replace(SEEN, deleting=True), replace(SEEN, ready=False),
    replace(SEEN, pod_uid=None, ready=False), replace(SEEN, op_id=f"{NAME}.r2"), replace(SEEN, pod_uid="pod-2"),
    replace(SEEN, volume_id="other"), replace(SEEN, uid=str(uuid.UUID(int=9))), replace(SEEN, reason="name_taken"),
]  # fmt: skip


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("trigger", ["reconcile", "idle"])
def test_every_state_has_an_answer_and_moves_fences_forward_only(
    state: tuple[str, str], status: SandboxStatus | None, trigger: Any
) -> None:
    """E-102: the decision is total; rev and hostEpoch never go back; desired deleted is never revived."""
    row = Row(desired=state[0], observed=state[1])
    step = look(row, status, trigger=trigger)
    assert step.patch.get("rev", row.rev) >= row.rev
    assert step.patch.get("host_epoch", row.host_epoch) >= row.host_epoch
    if state[0] == "deleted":
        assert step.patch.keys() <= {"observed", "retiring"}
        assert not any(isinstance(action, Apply) for action in step.actions)
    if status is None:
        assert not step.remove
        assert step.actions == []


@pytest.mark.parametrize(("desired", "observed"), [("suspended", "running"), ("running", "failed")])
def test_a_pod_that_outlives_the_apply_of_its_end_is_asked_to_end_again(desired: str, observed: str) -> None:
    """E-104, pain 2: the worker may have died after the object was written and before the pod was told."""
    left = replace(SEEN, mode="Suspended", ready=False, op_id=f"{NAME}.r4")
    step = look(Row(desired=desired, observed=observed, rev=4), left)
    assert (step.patch, step.actions) == ({}, [Apply("Suspended")])
    assert step.again is not None
