"""Waiting for a wake: the row is looked at until its pod runs, failed or is lost, or the asked time is over."""

from __future__ import annotations

from typing import Any

from environments.services.available import PodsAvailable
from environments.services.wake import look, wake_environment
from environments.tools.serve import FIRST_LOOK, LONGEST_LOOK
from nylorun.http.waiting import release, waiting
from nylorun.kernel.clock import monotonic, pause
from nylorun.kernel.errors import ServiceUnavailable

WAIT_DEFAULT = 30


def wake(
    environment_id: str, *, owner: str | None, pods: PodsAvailable, wait: int | None
) -> tuple[dict[str, Any], bool]:
    """Wake the Environment; its view, and whether the wait is over because it runs, failed or is lost."""
    view, settled = wake_environment(environment_id, owner=owner, pods=pods)
    if settled or wait == 0:
        return view, settled
    try:
        with waiting():
            return _wait(environment_id, view, monotonic() + (WAIT_DEFAULT if wait is None else wait))
    except ServiceUnavailable:
        return view, False


def _wait(environment_id: str, view: dict[str, Any], deadline: float) -> tuple[dict[str, Any], bool]:
    step = FIRST_LOOK
    settled = False
    while not settled and monotonic() + step < deadline:
        pause(step)
        view, settled = look(environment_id)
        release()
        step = min(step * 1.5, LONGEST_LOOK)
    return view, settled
