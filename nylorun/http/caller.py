"""Who calls, as a value, and what each route word asks of it.

* A bare application passes every word. A Caller acting for a person (an application for a Subject, a token) needs one
  of the word's scopes: which are missing is told (:class:`ScopeRequired`), what a person may never have looks missing.
* Nothing here reads a row: reach and guards are asked afterwards, by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nylorun.http.words import AGENTS, ANY, APP, ENGINE, OWN, PUBLIC, PUBLISH, READ, SECRET, WRITE, Word
from nylorun.kernel.errors import NotFound, Refusal

Kind = Literal["application", "token"]
SCOPES = ("agents:read", "agents:write", "sessions:own", "vaults:own", "environments:write", "tenant:settings")
ALL_SCOPES = frozenset(SCOPES)

_AGENTS = "v1/agents"
_BARE_APPLICATIONS_ONLY = ("v1/tokens", "v1/access", "v1/tenant/reset")
_SCOPES_OF: dict[Word, tuple[str, ...]] = {
    READ: ("sessions:own", "environments:write"),
    WRITE: ("environments:write",),
    PUBLISH: ("environments:write",),
    SECRET: ("environments:write", "vaults:own"),
    OWN: ("sessions:own",),
    AGENTS: ("agents:read", "sessions:own", "environments:write"),
    APP: ("tenant:settings",),
}


class ScopeRequired(Refusal):
    """The Caller lacks a scope the route needs; ``details.scopes`` are those of which one is needed."""

    code, status = "scope_required", 403

    def __init__(self, scopes: Sequence[str]) -> None:
        super().__init__(f"This route needs the scope {' or '.join(scopes)}.", details={"scopes": list(scopes)})


@dataclass(frozen=True, slots=True)
class Caller:
    """One authenticated Caller. ``id`` names the credential (an application's Principal id)."""

    kind: Kind
    id: str
    subject: str | None = None
    scopes: frozenset[str] = ALL_SCOPES

    @property
    def actor(self) -> str:
        """The name in audit rows, ``savedBy`` and Operations."""
        return self.subject or self.id

    @property
    def for_person(self) -> bool:
        """Whether it acts for a person: an application for a Subject, or a token."""
        return self.subject is not None

    def reaches(self, environment_id: str) -> bool:
        """Whether the Environment of this id is in sight; out of reach looks missing. Applications reach every one."""
        return self.kind == "application"

    def owns(self, owner_user_id: str | None) -> bool:
        """Whether the owner guard lets this Caller pass: a bare application, no guard, or its own Subject."""
        return self.subject is None or owner_user_id is None or owner_user_id == self.subject

    def may(self, word: Word, route: str = "") -> bool:
        """Whether :meth:`require` would pass."""
        try:
            self.require((word,), route)
        except Refusal:
            return False
        return True

    def require(self, words: tuple[Word, ...], route: str = "") -> None:
        """Pass when one of ``words`` lets this Caller use ``route`` (without its leading slash).

        Raises :class:`NotFound` for what a person may never use, else :class:`ScopeRequired`.
        """
        if self.subject is None or ANY in words or PUBLIC in words:
            return
        needed = [scope for word in words if not self._never(word, route) for scope in _scopes(word, route)]
        if not needed:
            raise NotFound
        if self.scopes.isdisjoint(needed):
            raise ScopeRequired(list(dict.fromkeys(needed)))

    def _never(self, word: Word, route: str) -> bool:
        if word is ENGINE:
            return True
        if word is APP and route.startswith(_BARE_APPLICATIONS_ONLY):
            return True
        return self.kind == "token" and word in (PUBLISH, APP)


def _scopes(word: Word, route: str) -> tuple[str, ...]:
    if word is WRITE and (route == _AGENTS or route.startswith(f"{_AGENTS}/")):
        return ("environments:write", "agents:write")
    return _SCOPES_OF[word]
