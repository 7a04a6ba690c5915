"""One Tool call outside a Session, from its journal entry to its answer.

* A call is sent at most once: when the Engine did not accept it nothing has run and it waits again; when the connection
  ended after that, the answer is ``tool.interrupted`` and it is never run again.
* While it waits or runs, this thread holds no database connection and one of the process's places for waiting calls.
* A call that is never sent leaves no row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from environments.commands import CallTool
from environments.compute.channel import EngineChannel
from environments.compute.contract import Answer, Interrupted, NotAccepted
from environments.errors import EnvironmentStarting
from environments.services import calls, variables
from environments.services.available import PodsAvailable
from environments.services.calls import Begun
from environments.services.variables import Noted
from environments.services.workplace import Workplace
from environments.tools.files import write_input_files
from environments.tools.renewal import renewed
from environments.tools.way_out import way_out
from nylorun import config
from nylorun.http.waiting import release, waiting
from nylorun.kernel.clock import monotonic, pause

Send = Callable[[EngineChannel, Workplace, str], Answer]
"""Sends one accepted-or-not call: channel, where it goes, and its id."""

FIRST_LOOK, LONGEST_LOOK = 0.01, 0.25


def serve(
    call: CallTool,
    *,
    owner: str | None,
    pods: PodsAvailable,
    send: Send,
    takes: str | None = None,
    lasts: timedelta | None = None,
) -> Answer:
    """Run the call and answer; raises the refusals of the start check and of the wait.

    With ``takes`` it takes the Environment's variables, and that actor stands in the audit of their use. With ``lasts``
    (its time limit) it is a command and gets the way out of a virtual workspace that has one.
    """
    with waiting(connected=True):
        begun = calls.begin(call, owner=owner, pods=pods, takes=takes)
        with renewed(begun.effect_id):
            try:
                answer, made = _send_once(begun, call.environment_id, send, takes, lasts)
            except BaseException:
                calls.withdraw(begun)
                raise
        ours = calls.finish(begun, call.environment_id, workspace_made=made)
        return answer if ours else interrupted()


def interrupted() -> Answer:
    """The answer to a call whose Engine went away after it had accepted it."""
    return Answer("failed", code="tool.interrupted", message="The sandbox went away during the call; it was ended.")


def channel_of(place: Workplace) -> EngineChannel:
    """The Engine that serves this place."""
    if place.kind == "virtual":
        return EngineChannel(config.current().virtual_engine)
    return EngineChannel(str(place.address))


def _send_once(
    begun: Begun, environment_id: str, send: Send, takes: str | None, lasts: timedelta | None
) -> tuple[Answer, bool]:
    deadline = monotonic() + config.current().start_wait_seconds
    place = None if begun.workplace is None else _equipped(begun.workplace, begun.noted, lasts)
    release()
    wait = FIRST_LOOK
    while True:
        if place is None:
            place = _equipped(*_wait_until_ready(begun, environment_id, deadline, takes), lasts)
            release()
        try:
            return _send(place, begun, send)
        except NotAccepted:
            calls.not_accepted(begun, environment_id)
            place = None
            release()
            wait = _pause(wait, deadline, environment_id)


def _send(place: Workplace, begun: Begun, send: Send) -> tuple[Answer, bool]:
    channel = channel_of(place)
    try:
        if place.fresh and place.files:
            failure = write_input_files(channel, place, begun.effect_id, place.files)
            if failure is not None:
                return failure, False
        return send(channel, place, begun.effect_id), place.fresh
    except Interrupted:
        return interrupted(), False


def _equipped(place: Workplace, noted: Noted | None, lasts: timedelta | None) -> Workplace:
    """The place with what the call takes and its way out, now that its use is committed."""
    if noted is not None:
        place = replace(place, variables=variables.opened(noted))
    return place if lasts is None or not place.way_out else replace(place, egress=way_out(place, lasts))


def _wait_until_ready(
    begun: Begun, environment_id: str, deadline: float, takes: str | None
) -> tuple[Workplace, Noted | None]:
    wait = FIRST_LOOK
    while True:
        if calls.look(begun, environment_id):
            sent = calls.invoke(begun, environment_id, takes=takes)
            if sent is not None:
                return sent
        release()
        wait = _pause(wait, deadline, environment_id)


def _pause(wait: float, deadline: float, environment_id: str) -> float:
    if monotonic() + wait > deadline:
        raise EnvironmentStarting(environment_id)
    pause(wait)
    return min(wait * 1.5, LONGEST_LOOK)
