"""The keyring of this process, and the proof that it is the right one.

:func:`current` reads it from the settings once. The canary is a sealed row whose text is no secret: the first process
that looks for it makes it, every later one must be able to open it.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Protocol

from django.db import DatabaseError, connection

from nylorun import config
from nylorun.kernel.sealing import Keyring, KeyringError, Unreadable, parse_keyring

log = logging.getLogger(__name__)

CANARY = b"nylorun keyring canary"
_PLACE = {"table": "access_keyring_canary", "id": "only"}
_READ = "SELECT sealed FROM access_keyring_canary"
_MAKE = (
    'INSERT INTO access_keyring_canary ("only", sealed, created_at) VALUES (true, %s, clock_timestamp())'
    " ON CONFLICT DO NOTHING"
)


class Cursor(Protocol):
    """What the canary needs of a database cursor in autocommit."""

    def execute(self, query: str, params: list[bytes] | None = None, /) -> object:
        """Run one statement."""

    def fetchone(self) -> tuple[bytes] | None:
        """Its first row."""


@lru_cache(maxsize=1)
def current() -> Keyring:
    """The keyring of this process; raises :class:`~nylorun.kernel.sealing.KeyringError` naming what is wrong."""
    settings = config.current()
    return parse_keyring(settings.keyring, settings.tenant_id)


def canary_fault(cursor: Cursor) -> str | None:
    """Why this keyring is not the one of the database, or ``None``; makes the canary when there is none yet."""
    cursor.execute(_READ)
    row = cursor.fetchone()
    if row is None:
        cursor.execute(_MAKE, [bytes(current().seal(CANARY, _PLACE))])
        cursor.execute(_READ)
        row = cursor.fetchone()
    try:
        opened = current().open_sealed(bytes(row[0]), _PLACE) if row else b""
    except Unreadable:
        opened = b""
    return None if opened == CANARY else "cannot open the canary: another keyring or TENANT_ID"


def require_ours() -> None:
    """Refuse to go on with a keyring that is not this database's: raises :class:`KeyringError`.

    A database that is away now is left to readiness. Leaves no connection behind.
    """
    try:
        with connection.cursor() as cursor:
            fault = canary_fault(cursor)
    except DatabaseError as error:
        log.warning("the keyring was not checked: %s", type(error).__name__)
        return
    finally:
        connection.close()
    if fault is not None:
        raise KeyringError(f"The keyring {fault}.")
