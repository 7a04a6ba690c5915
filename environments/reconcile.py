"""One look at a pod, one step toward what its row wants. Pure and total: every pair of row and status has an answer.

:func:`decide` reads the row, what the Driver sees (or that it does not answer), and the time; it answers with a
:class:`Step`: columns to write, actions on the machine that follow the commit, and when to look again. First match
wins, after the look at a volume that is being retired. Unknown is not gone: without an answer nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol
from uuid import UUID

from environments import lifecycle
from environments.compute.contract import Mode, SandboxStatus

POLL = 2.0
NO_ANSWER = 5.0

Trigger = Literal["reconcile", "idle"]


class MachineRow(lifecycle.PodRow, Protocol):
    """The columns a reconcile reads beyond those of the commands."""

    uid: UUID
    pod_uid: str | None
    volume_id: str | None
    join_token_hash: str | None
    started_at: datetime | None
    image_digest: str | None
    image_digest_for: str | None
    unenforced: Any
    idle_at: datetime | None


@dataclass(frozen=True, slots=True)
class Apply:
    """Make or change the Sandbox object of the row's current name; ``rotate``: with a new join token."""

    mode: Mode
    rotate: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove what is left of a name."""

    name: str
    keep_volume: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """What the Drivers see: ``None`` is no answer."""

    status: SandboxStatus | None
    retiring: SandboxStatus | None = None


@dataclass(slots=True)
class Step:
    """What one look decided. ``again``: seconds until the next one; ``remove``: nothing is left, the row goes."""

    patch: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    actions: list[Apply | Delete] = field(default_factory=list)
    again: float | None = None
    remove: bool = False
    snapshot: bool = False
    """The disk is copied before the idle suspend, which follows it."""
    silent: bool = False
    """The Driver did not answer: the next look comes later and later."""

    def look_again(self, seconds: float) -> None:
        """Look again in ``seconds`` or sooner."""
        self.again = seconds if self.again is None else min(self.again, seconds)

    def change(self, change: lifecycle.Change) -> None:
        """Write what a command of the automaton writes."""
        self.patch.update(change.patch)
        self.events.extend(change.events)


@dataclass(frozen=True, slots=True)
class Look:
    """Everything one decision reads."""

    row: MachineRow
    world: World
    now: datetime
    idle: timedelta
    start_deadline: timedelta
    busy: bool
    trigger: Trigger = "reconcile"
    copy_first: bool = False
    """An idle suspend is preceded by a snapshot."""


def decide(look: Look) -> Step:
    """What to do now, and when to look again."""
    step = Step()
    _retire(look, step)
    status = look.world.status
    if status is None:
        step.silent = True
        step.look_again(NO_ANSWER)
    elif look.row.desired == "deleted":
        _go_away(look, status, step)
    elif look.row.observed == "lost":
        _keep_only_the_volume(status, step)
    elif look.trigger == "idle" and look.row.desired == "running":
        _idle(look, step)
    else:
        _follow(look, status, step)
    return step


def _retire(look: Look, step: Step) -> None:
    name, status = look.row.retiring, look.world.retiring
    if name is None:
        return
    if status is None:
        step.look_again(NO_ANSWER)
    elif status.gone:
        step.patch["retiring"] = None
    else:
        step.actions.append(Delete(name))
        step.look_again(POLL)


def _go_away(look: Look, status: SandboxStatus, step: Step) -> None:
    still_retiring = look.row.retiring is not None and "retiring" not in step.patch
    if status.gone and not still_retiring:
        step.remove = True
        step.again = None
        return
    if look.row.observed != "deleting":
        step.patch["observed"] = "deleting"
    if not status.gone:
        step.actions.append(Delete(status.name))
    step.look_again(POLL)


def _keep_only_the_volume(status: SandboxStatus, step: Step) -> None:
    if status.exists or status.pod_uid is not None:
        step.actions.append(Delete(status.name, keep_volume=True))
        step.look_again(POLL)


def _idle(look: Look, step: Step) -> None:
    if look.busy or lifecycle.lease(look.row, look.now) is not None:
        return
    due = lifecycle.idle_due(look.row, look.idle)
    if due > look.now:
        step.patch["idle_at"] = due
        return
    if look.copy_first:
        step.snapshot = True
        return
    step.change(lifecycle.suspend(look.row, "idle"))
    step.look_again(0)


def _follow(look: Look, status: SandboxStatus, step: Step) -> None:
    if status.reason == "name_taken":
        if look.row.observed != "failed":
            step.change(lifecycle.fail(look.row, "name_taken: an object of this name belongs to somebody else"))
    elif _volume_is_lost(look.row, status):
        _lose(look, status, step)
    elif status.deleting or _is_foreign(look.row, status):
        step.actions.append(Delete(status.name))
        step.look_again(POLL)
    elif look.row.desired == "suspended" and not status.exists:
        _observe(look, step, "suspended")
    elif status.op_id != lifecycle.op_id(look.row.k8s_name, look.row.rev):
        _apply(look, status, step)
    else:
        _follow_the_current(look, status, step)


def _follow_the_current(look: Look, status: SandboxStatus, step: Step) -> None:
    """The object bears the row's op id: only its pod is still to follow."""
    if look.row.desired == "running":
        _follow_running(look, status, step)
    elif status.pod_uid is None:
        _observe(look, step, "suspended")
    else:
        _end_again(step)


def _end_again(step: Step) -> None:
    """A pod that shall be gone is still there: it has its grace, or whoever was to end it died between the object and
    that. Asking again costs the first case nothing.
    """
    step.actions.append(Apply("Suspended"))
    step.look_again(POLL)


def _volume_is_lost(row: MachineRow, status: SandboxStatus) -> bool:
    if row.pod_uid is None and row.volume_id is None:
        return False
    return status.volume == "missing" or (row.volume_id is not None and status.volume_id != row.volume_id)


def _lose(look: Look, status: SandboxStatus, step: Step) -> None:
    reason = "volume_missing" if status.volume_id is None else "volume_replaced"
    step.change(lifecycle.lose(look.row, reason))
    step.actions.append(Delete(status.name, keep_volume=True))
    step.look_again(POLL)


def _is_foreign(row: MachineRow, status: SandboxStatus) -> bool:
    return status.uid is not None and status.uid != str(row.uid)


def _apply(look: Look, status: SandboxStatus, step: Step) -> None:
    running = look.row.desired == "running" and look.row.observed != "failed"
    if running and look.row.observed == "running" and not status.exists:
        # No loss: its volume is in place. The pod it had stays noted, so the join of the next one is a relaunch.
        step.patch.update(observed="creating", started_at=look.now, host_epoch=(look.row.host_epoch or 0) + 1)
    elif running:
        # Committed before the apply: the pod may join before the call returns.
        step.patch["pod_uid"] = None
        if look.row.observed != "creating":
            step.patch.update(observed="creating", started_at=look.now, reason=None)
    step.actions.append(Apply("Running" if running else "Suspended", rotate=not status.exists))
    step.look_again(POLL)


def _follow_running(look: Look, status: SandboxStatus, step: Step) -> None:
    row = look.row
    if row.observed == "failed":
        if status.pod_uid is not None:
            _end_again(step)
    elif status.ready:
        _ready(look, status, step)
    elif row.observed == "running":
        _interrupted(look, status, step)
    elif _past_deadline(look):
        reason = status.reason or "start_timeout"
        step.change(lifecycle.fail(row, f"{reason}: {status.message}" if status.message else reason))
        step.look_again(0)
    else:
        if status.pod_uid is None:
            step.actions.append(Apply("Running", rotate=not status.exists))
        step.look_again(POLL)


def _interrupted(look: Look, status: SandboxStatus, step: Step) -> None:
    """A pod that ran is not ready: the calls of the earlier pod end, and the object starts it again on its volume."""
    step.patch.update(observed="creating", started_at=look.now)
    if status.pod_uid is None:
        step.patch["host_epoch"] = (look.row.host_epoch or 0) + 1
        step.actions.append(Apply("Running", rotate=not status.exists))
    step.look_again(POLL)


def _ready(look: Look, status: SandboxStatus, step: Step) -> None:
    row = look.row
    if row.pod_uid != status.pod_uid:
        # Ready, but this pod has not joined: its join is what says running.
        if _past_deadline(look):
            step.change(lifecycle.fail(row, "engine_missing"))
            step.look_again(0)
        else:
            step.look_again(POLL)
        return
    if row.observed != "running":
        step.patch.update(observed="running", reason=None)
    if status.image_digest is not None and _digest_is_unknown(row):
        step.patch.update(image_digest=status.image_digest, image_digest_for=row.applied.get("image"))
    if list(status.unenforced) != list(row.unenforced or []):
        step.patch["unenforced"] = list(status.unenforced)


def _digest_is_unknown(row: MachineRow) -> bool:
    return row.image_digest is None or row.image_digest_for != row.applied.get("image")


def _past_deadline(look: Look) -> bool:
    return look.row.started_at is not None and look.now - look.row.started_at >= look.start_deadline


def _observe(look: Look, step: Step, observed: lifecycle.Observed) -> None:
    if look.row.observed != observed:
        step.patch["observed"] = observed
