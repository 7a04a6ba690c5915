"""What the gate asks of the rest of the installation. Implemented elsewhere; nothing here knows a row.

Every method of :class:`Doorkeeper` may be called for many connections at once. One that gets no answer from its rows
raises :class:`Unavailable`: a new tunnel is then answered 503, an open one stays, since unknown is not gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

from vault.hosts import covered
from vault.values import Value

Reason = Literal["not_allowed", "port", "address", "not_public", "limit", "token", "secret", "host"]
"""Why something was refused. A request that breaks HTTP itself has none."""


class Unavailable(Exception):
    """The rows could not be asked. Holds nothing of what was asked."""


class CannotOpen(Exception):
    """A bound Secret could not be read, or cannot be written into a header. Never holds any of it."""


@dataclass(frozen=True, slots=True)
class Whose:
    """One Environment: its id, and the ``uid`` that tells it from an earlier one of the same id."""

    environment_id: str
    uid: UUID


@dataclass(frozen=True, slots=True)
class Pass:
    """What one good token may do, as the rows said at the moment it was shown. Good for one tunnel or one request.

    ``allowed`` are the patterns of the applied Recipe's ``network`` (``None``: it has none, so nothing is allowed),
    ``ceiling`` those of the Tenant (``None``: there is no ceiling). ``bound`` are the hosts, lower-cased, that a hidden
    Secret of this Environment names. ``subject`` is the Session owner's, for headers of identity.
    """

    whose: Whose
    epoch: int
    allowed: tuple[str, ...] | None
    ceiling: tuple[str, ...] | None = None
    bound: frozenset[str] = frozenset()
    subject: str | None = None

    def lets(self, host: str) -> bool:
        """Whether an exact, lower-cased host is inside the Recipe's list and the ceiling."""
        inside = self.allowed is not None and covered(host, self.allowed)
        return inside and (self.ceiling is None or covered(host, self.ceiling))


@dataclass(frozen=True, slots=True)
class Stale:
    """A token that is refused. ``whose`` when it is one of ours that is over, so that it can be recorded there."""

    whose: Whose | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A hidden Secret with its value. ``binding`` in its normal form; the value hides itself."""

    type: str
    binding: Mapping[str, Any]
    value: Value = field(repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """``count`` refusals to be recorded as one event ``egress``. Host ``*``: those beyond the hourly bound."""

    whose: Whose
    host: str
    port: int | None
    reason: Reason | None
    count: int

    def payload(self) -> dict[str, Any]:
        """The event's payload, members without a value left out."""
        members = {"host": self.host, "port": self.port, "allowed": False, "reason": self.reason, "count": self.count}
        return {name: member for name, member in members.items() if member is not None}


class Doorkeeper(Protocol):
    """The gate's one door to the rows."""

    async def admit(self, token: str) -> Pass | Stale:
        """Verify an egress token (signature, times) and compare it with the row it names, as it is now."""

    async def open(self, admitted: Pass, host: str) -> Sequence[Opened]:
        """Every hidden Secret bound to ``host``, opened. Their uses are committed before a value is returned.

        Raises :class:`CannotOpen`. Called once for a tunnel.
        """

    async def via_allowed(self, admitted: Pass, via: str) -> bool:
        """Whether this URL is one of the Tenant's ``limits.via`` now. Asked for each request that would go there."""

    async def record(self, refused: Sequence[Refused]) -> None:
        """Append these events. What cannot be appended is lost: a refusal holds whether or not it is on record."""

    async def compare(self, passes: Collection[Pass]) -> Mapping[Pass, Pass]:
        """The same passes as the rows say now; one whose row, epoch or state moved on is missing.

        Asked at least every ``SIGNAL_POLL`` for all open tunnels: those without a pass are closed, and those to a host
        that the Recipe or the ceiling lets through no more.
        """
