"""The way out that one call to a virtual workspace carries: the gate, a token for this call, what to trust there."""

from __future__ import annotations

from datetime import timedelta

from environments.services.workplace import Workplace
from nylorun import config
from nylorun.access import signing
from nylorun.db.tx import database_now
from vault.services import authority

BEYOND = timedelta(seconds=60)
"""How much longer than its call a token is good."""


def way_out(place: Workplace, lasts: timedelta) -> dict[str, str] | None:
    """For a call that lasts so long at most; ``None`` where no way leads out. Uses the database, in no transaction.

    It holds the token in clear: to be sent with the call, and kept nowhere.
    """
    if not place.way_out:
        return None
    claims = {"uid": str(place.uid)}
    token = signing.mint(signing.EGRESS, place.environment_id, claims, ttl=lasts + BEYOND, now=database_now())
    return {"gate": config.current().egress_url, "token": token, "trusted": authority.certificate()}
