"""The variables that a call or a setup run takes from its Vault: noted in the commit before it, opened after that.

* An Environment without Secrets costs nothing: ``has_secrets`` stands in its row, written under its lock.
* What is noted holds sealed rows alone; a plaintext exists from :func:`opened` to the sending of the call.
* A hidden Secret whose name can be a variable is one, too, with a value that says that it is set elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from environments.models import Environment
from nylorun.db.tx import Tx
from vault.services import listing, opening
from vault.services.audit import Trail
from vault.services.listing import PLACEHOLDER
from vault.services.opening import Permit
from vault.values import Value

MASKED_FROM = 6
"""Bytes: a shorter value is not masked, since it would stand for too much of what is no secret."""


@dataclass(frozen=True, slots=True)
class Noted:
    """Uses that were written down, to be opened after the commit."""

    permit: Permit
    managed: tuple[str, ...]


class Variables:
    """The variables of one call. Shows no value by accident."""

    __slots__ = ("_managed", "_values")

    def __init__(self, values: Mapping[str, Value] | None = None, managed: tuple[str, ...] = ()) -> None:
        self._values = dict(values or {})
        self._managed = managed

    def under(self, env: Mapping[str, str]) -> dict[str, str]:
        """What the sandbox gets: these variables, and ``env`` over them."""
        revealed = {name: value.reveal_text() for name, value in self._values.items()}
        return {**dict.fromkeys(self._managed, PLACEHOLDER), **revealed, **env}

    def mask(self, text: str) -> str:
        """``text`` with every value of ``MASKED_FROM`` bytes or more as ``[<name>]``, the longest first."""
        values = [(value.reveal_text(), name) for name, value in self._values.items()]
        for value, name in sorted(values, key=lambda pair: (-len(pair[0]), pair[1])):
            if len(value.encode()) >= MASKED_FROM:
                text = text.replace(value, f"[{name}]")
        return text

    def __repr__(self) -> str:
        return f"<Variables {sorted((*self._values, *self._managed))}>"


NONE = Variables()


def note(tx: Tx, row: Environment, *, actor: str, now: datetime) -> Noted | None:
    """Write the ``use`` rows of what a call on this row takes; ``None`` when its Vault is empty. Locks nothing more."""
    if not row.has_secrets:
        return None
    permit = opening.note_use(tx, row.uid, trail=Trail(actor, environment_id=row.id), now=now)
    return Noted(permit, tuple(listing.placeholder_names(row.uid)))


def opened(noted: Noted | None) -> Variables:
    """Open what was noted, after the commit; raises :class:`~nylorun.kernel.sealing.Unreadable`."""
    return NONE if noted is None else Variables(opening.open_variables(noted.permit), noted.managed)
