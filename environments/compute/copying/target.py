"""On whose behalf the calls of a disk copy are made, and where they go."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from environments.compute.channel import EngineChannel
from environments.compute.copying.pulling import PulledCall
from environments.compute.engine import wire


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class Target:
    """Where the calls of one copy go, and on whose behalf.

    ``copy`` is the Operation, ``attempt`` counts from 1: the Engine ends what another attempt still runs, and refuses
    one that another has followed. ``before_call`` runs before every call; what it raises ends the copy. An Engine that
    says nothing for ``quiet_s`` is given up.
    """

    channel: EngineChannel
    epoch: int
    copy: str
    attempt: int
    workspace: str | None = None
    limits: Mapping[str, int] | None = None
    cancel: threading.Event | None = None
    before_call: Callable[[], None] = _nothing
    quiet_s: float = 120.0

    def call(self, op: str, **args: object) -> PulledCall:
        """Begin a call."""
        self.before_call()
        header = wire.encode_header(
            op,
            {**args, "copy": self.copy, "attempt": self.attempt},
            call=f"{self.copy}-{self.attempt}-{secrets.token_hex(6)}",
            epoch=self.epoch,
            workspace=self.workspace,
            limits=self.limits,
        )
        return PulledCall(self.channel, op, header, quiet_s=self.quiet_s, cancel=self.cancel)
