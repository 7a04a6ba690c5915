"""Applications: their keys are drawn here, shown once and kept as a hash.

* :func:`create_application` answers the key, 64 lower-case hex digits, and nobody can read it again.
* A revoked application keeps its row; ``replace`` gives it a new key and ends the old one in the same commit.
"""

from __future__ import annotations

import re
import secrets

from django.db import IntegrityError

from nylorun.access.authentication import key_hash
from nylorun.access.models import Principal
from nylorun.db.tx import Tx, transact
from nylorun.kernel.errors import NotFound, RequestConflict, RequestRejected

APPLICATION_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def create_application(name: str, *, replace: bool = False) -> str:
    """Make the application and answer its key; an existing one only with ``replace``."""
    if APPLICATION_ID.fullmatch(name) is None:
        raise RequestRejected(f"{name!r} is no application id: 1 to 64 letters, digits, '.', '_' and '-'.")
    key = secrets.token_hex(32)

    def work(tx: Tx) -> None:
        values = {"token_hash": key_hash(key), "created_at": tx.now(), "revoked_at": None}
        if replace and Principal.objects.filter(id=name).update(**values):
            return
        Principal.objects.create(id=name, **values)

    try:
        transact(work)
    except IntegrityError:
        raise RequestConflict(f"Application {name} exists. Give it a new key with --replace.") from None
    return key


def revoke_application(name: str) -> None:
    """End its key from the next request on; repeating changes nothing."""

    def work(tx: Tx) -> bool:
        rows = Principal.objects.filter(id=name)
        rows.filter(revoked_at=None).update(revoked_at=tx.now())
        return rows.exists()

    if not transact(work):
        raise NotFound


def applications() -> list[Principal]:
    """All of them, by id."""
    return list(Principal.objects.order_by("id"))
