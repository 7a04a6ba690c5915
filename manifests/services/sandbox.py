"""The Tenant's sandbox settings: read whenever they are used, replaced as a whole.

Existing Recipes are not touched by a change. What follows one (the idle timers of running pods) is registered in
:data:`AFTER_CHANGE` by those who own it, and runs after the commit; losing it costs time only. Lock: the setting's row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from manifests.settings import in_force, parse
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import InvalidRequest
from nylorun.tenant.store import SANDBOX_CONFIG, locked_setting, setting, write_setting

AFTER_CHANGE: Final[list[Callable[[], None]]] = []


def show_sandbox() -> dict[str, Any]:
    """The document as it was written, and what is in force."""
    return _shown(setting(SANDBOX_CONFIG))


def put_sandbox(document: Mapping[str, Any], *, actor: str) -> dict[str, Any]:
    """Replace the document; raises :class:`InvalidRequest` with every problem of it."""
    config, problems = parse(document)
    if problems:
        raise InvalidRequest(problems)

    def work(tx: Tx) -> None:
        locked_setting(tx, SANDBOX_CONFIG)
        write_setting(SANDBOX_CONFIG, config, now=tx.now(), actor=actor)
        for action in AFTER_CHANGE:
            tx.after_commit(action)

    transact(work)
    return _shown(config)


def _shown(config: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"config": dict(config or {}), "effective": dict(in_force(config).document)}
