"""Part: one process the supervisor keeps running, described by what to run, when it counts as ready and how it ends."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from nylorun.embedded.processes import Command
from nylorun.embedded.server import Server


def _nothing_to_end() -> int:
    return 0


@dataclass(frozen=True)
class Part:
    """One entry of the process table.

    `stage` orders the end: a higher stage has ended before a lower one is asked to, parts of one stage end together.
    `grace` is how many seconds an asked part has before its process group is killed.
    """

    name: str
    stage: int
    prepare: Callable[[], Command]
    ready: Callable[[int], bool] = field(default=lambda pid: True)
    stop_signal: signal.Signals = signal.SIGTERM
    grace: float = 3.0
    end_leftovers: Callable[[], int] = _nothing_to_end


def server_part(server: Server, stage: int, grace: float) -> Part:
    """An embedded server as a part."""
    return Part(
        name=server.name,
        stage=stage,
        prepare=server.prepare,
        ready=server.ready,
        stop_signal=server.stop_signal,
        grace=grace,
        end_leftovers=server.end_leftovers,
    )
