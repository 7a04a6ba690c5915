"""The certificate authority of this installation's egress gate: made once, its key sealed in its row.

Sandboxes with a way out trust its certificate; it signs for hosts with a bound Secret alone, in the gate's process.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connection

from nylorun.access import keyring
from nylorun.db.tx import database_now
from vault.gate.authority import new_authority

_PLACE = {"table": "vault_gate_authority", "id": "only"}
_READ = "SELECT certificate, sealed_key FROM vault_gate_authority"
_MAKE = (
    'INSERT INTO vault_gate_authority ("only", certificate, sealed_key, created_at) VALUES (true, %s, %s, %s)'
    " ON CONFLICT DO NOTHING"
)


def certificate() -> str:
    """Its certificate, PEM; made when there is none yet. Of several processes that make one, one row stays."""
    return _row()[0]


def authority() -> tuple[bytes, bytes]:
    """Its key and its certificate, PEM, for the gate's own process; raises
    :class:`~nylorun.kernel.sealing.Unreadable`.
    """
    text, sealed = _row()
    return keyring.current().open_sealed(sealed, _PLACE), text.encode("ascii")


def _row() -> tuple[str, bytes]:
    row = _read()
    if row is None:
        _make(database_now())
        row = _read()
    assert row is not None  # noqa: S101 one is never removed
    return row


def _read() -> tuple[str, bytes] | None:
    with connection.cursor() as cursor:
        cursor.execute(_READ)
        found = cursor.fetchone()
    return None if found is None else (found[0], bytes(found[1]))


def _make(now: datetime) -> None:
    key, text = new_authority(now)
    sealed = bytes(keyring.current().seal(key, _PLACE))
    with connection.cursor() as cursor:
        cursor.execute(_MAKE, [text.decode("ascii"), sealed, now])
