"""The open tunnels: how many an Environment has, which are idle, which must go.

Everything here runs on the gate's loop and awaits nothing, so each method sees and leaves a whole state.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from vault.gate.doorkeeper import Pass, Whose
from vault.gate.errors import Refuse
from vault.gate.targets import Target
from vault.gate.wire import Wire


@dataclass(eq=False, slots=True)
class Tunnel:
    """One way to one host. Ends with its task; ``wires`` are every connection it moves bytes on."""

    admitted: Pass
    target: Target
    task: asyncio.Task[None]
    wires: list[Wire]

    def idle_since(self) -> float:
        """When its last byte moved, in either direction."""
        return max(wire.moved_at for wire in self.wires)


@dataclass(eq=False, slots=True)
class Admission:
    """A token that is being looked at. What is revoked meanwhile must not be let in with what was read before."""

    revoked: list[tuple[str, int]] = field(default_factory=list)

    def outlived_by(self, admitted: Pass) -> bool:
        """Whether this pass is still good."""
        return not any(_revokes(admitted, *one) for one in self.revoked)


class Tunnels:
    """Of one gate."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[Tunnel] = set()
        self._counts: defaultdict[Whose, int] = defaultdict(int)
        self._admissions: set[Admission] = set()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def admission(self) -> Iterator[Admission]:
        """For the time a token is looked at."""
        admission = Admission()
        self._admissions.add(admission)
        try:
            yield admission
        finally:
            self._admissions.discard(admission)

    @contextmanager
    def opened(self, admitted: Pass, target: Target, wire: Wire) -> Iterator[Tunnel]:
        """A tunnel of the current task while the block runs; raises :class:`Refuse` at the limit."""
        if self._counts[admitted.whose] >= self._most:
            raise Refuse(f"At most {self._most} tunnels are open at once.", "limit", host=target.host, port=target.port)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 a coroutine of the gate's loop runs in a task
        tunnel = Tunnel(admitted, target, task, [wire])
        self._open.add(tunnel)
        self._counts[admitted.whose] += 1
        try:
            yield tunnel
        finally:
            self._open.discard(tunnel)
            self._counts[admitted.whose] -= 1
            if not self._counts[admitted.whose]:
                del self._counts[admitted.whose]

    def passes(self) -> set[Pass]:
        """Those that open tunnels were let in with."""
        return {tunnel.admitted for tunnel in self._open}

    def revoke(self, environment_id: str, epoch: int) -> int:
        """End every tunnel of this Environment and this epoch or an older one; how many."""
        for admission in self._admissions:
            admission.revoked.append((environment_id, epoch))
        return self._end({tunnel for tunnel in self._open if _revokes(tunnel.admitted, environment_id, epoch)})

    def compared(self, asked: set[Pass], now: Mapping[Pass, Pass]) -> int:
        """End the tunnels whose pass, of those that were asked for, is gone or lets their host through no more."""
        ended = set()
        for tunnel in self._open:
            if tunnel.admitted not in asked:
                continue
            admitted = now.get(tunnel.admitted)
            if admitted is None or not admitted.lets(tunnel.target.host):
                ended.add(tunnel)
            else:
                tunnel.admitted = admitted
        return self._end(ended)

    def end_idle(self, before: float) -> int:
        """End the tunnels on which no byte moved since ``before``; how many."""
        return self._end({tunnel for tunnel in self._open if tunnel.idle_since() <= before})

    def _end(self, tunnels: set[Tunnel]) -> int:
        for tunnel in tunnels:
            tunnel.task.cancel()
        return len(tunnels)


def _revokes(admitted: Pass, environment_id: str, epoch: int) -> bool:
    return admitted.whose.environment_id == environment_id and admitted.epoch <= epoch
