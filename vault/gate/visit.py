"""One connection of a sandbox, and what its handlers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vault.gate.authority import Authority
from vault.gate.doorkeeper import Doorkeeper, Whose
from vault.gate.exchange import Exchange
from vault.gate.limits import Limits
from vault.gate.network import Roads
from vault.gate.targets import Target
from vault.gate.wire import Channel, Wire


@dataclass(frozen=True, slots=True)
class House:
    """What every connection of one gate is served with."""

    doorkeeper: Doorkeeper
    roads: Roads
    authority: Authority
    limits: Limits


@dataclass(slots=True)
class Visit:
    """``channel`` is where a refusal can be answered: ``None`` inside a passed tunnel and once an answer has begun."""

    wire: Wire
    channel: Channel | None
    whose: Whose | None = None
    target: Target | None = None
    """What the present request is for; a refusal without a host of its own is recorded under it."""

    @contextmanager
    def answering(self, exchange: Exchange) -> Iterator[None]:
        """The gate says nothing more once the server's answer has begun."""
        try:
            yield
        except BaseException:
            if exchange.answered:
                self.channel = None
            raise
