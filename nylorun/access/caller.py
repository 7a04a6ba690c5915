"""From headers to a :class:`Caller`: an application, alone or for a Subject.

The value itself and what each route word asks of it live in :mod:`nylorun.http.caller`.
"""

from __future__ import annotations

from nylorun.access.errors import SubjectInvalid, SubjectRequired
from nylorun.http.caller import ALL_SCOPES as ALL_SCOPES
from nylorun.http.caller import SCOPES as SCOPES
from nylorun.http.caller import Caller as Caller
from nylorun.http.caller import ScopeRequired as ScopeRequired
from nylorun.kernel.ids import is_subject


def application_caller(principal_id: str, subject: str | None, scopes: str | None) -> Caller:
    """The Caller of an application key; ``subject`` and ``scopes`` are the two headers as they were sent."""
    if subject is None:
        if scopes is not None:
            raise SubjectRequired
        return Caller("application", principal_id)
    if not is_subject(subject):
        raise SubjectInvalid("Nylorun-Subject must be 1 to 200 printable ASCII characters and no reserved name.")
    if not scopes:
        raise SubjectInvalid("Nylorun-Subject needs Nylorun-Scopes: at least one scope.")
    return Caller("application", principal_id, subject, _scopes(scopes))


def _scopes(header: str) -> frozenset[str]:
    names = header.split(" ")
    if not ALL_SCOPES.issuperset(names):
        raise SubjectInvalid(f"Nylorun-Scopes must be scopes separated by single spaces: {', '.join(SCOPES)}.")
    return frozenset(names)
