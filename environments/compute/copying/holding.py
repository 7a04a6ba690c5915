"""Holding the processes of a pod while its disk is read: ``hold``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from environments.compute.contract import Interrupted
from environments.compute.copying.pulling import CopyFailed, PulledCall, unusable
from environments.compute.copying.target import Target
from environments.compute.engine import jsonc, wire

PATIENCE_MS = 30_000  # how long an Engine holds for a client that says nothing
STILL_HERE_SECONDS = 5.0
RELEASE_SECONDS = 10.0


@dataclass(slots=True)
class Held:
    """A hold: how many processes stand still. After the block, ``lost`` says that it ended before the block did."""

    processes: int = 0
    lost: bool = False


@contextmanager
def hold(target: Target) -> Iterator[Held]:
    """Let every process of the pod but its Engine stand still while the block runs.

    Nothing of a virtual workspace runs between calls, so there is nothing to be done there.
    """
    if target.workspace is not None:
        yield Held()
        return
    with target.call("tree.hold", patienceMs=PATIENCE_MS) as call:
        yield from _held(call)


def _held(call: PulledCall) -> Iterator[Held]:
    held, over = Held(_processes(call)), threading.Event()

    def say_so() -> None:
        """Say that this process still lives: one that sleeps must not hold a pod for ever."""
        with suppress(CopyFailed, Interrupted):  # the end of the block sees it as well
            while not over.wait(STILL_HERE_SECONDS) and call.send_data(b""):
                pass

    thread = threading.Thread(target=say_so, name="hold", daemon=True)
    thread.start()
    try:
        yield held
    finally:
        over.set()
        thread.join()
        held.lost = not _released(call)


def _released(call: PulledCall) -> bool:
    """End the hold; whether it lasted until now."""
    call.quiet_s = RELEASE_SECONDS
    call.send(wire.encode(wire.KILL))
    try:
        return not call.output
    except (CopyFailed, Interrupted):
        return False


def _processes(call: PulledCall) -> int:
    """The hold is in force when its Engine has said how many processes it holds."""
    try:
        value = jsonc.loads(next(call.pieces(), b""))
    except ValueError as error:
        raise unusable("it does not say what it holds.") from error
    count = value.get("processes") if isinstance(value, dict) else None
    if not isinstance(count, int) or count < 0:
        raise unusable("it does not say what it holds.")
    return count
