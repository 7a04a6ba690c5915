"""Secrets as the product writes them, and looks at rows."""

from __future__ import annotations

from typing import Any

from environments.models import Environment
from nylorun.db.tx import transact
from tests.support.client import Api
from vault.models import Secret, VaultAudit
from vault.services import opening
from vault.services.audit import Trail
from vault.services.opening import Permit

PLAIN = "s3cret-value"
VARIABLE = {"type": "environment_variable", "value": PLAIN}
BEARER = {"type": "bearer", "url": "https://api.example.org/v1", "value": PLAIN}
HEADERS = {"type": "headers", "url": "https://b.example.org/v1", "headers": {"X-Api-Key": PLAIN}}
HOST = {"type": "environment_secret", "allowedHosts": ["c.example.org"], "value": PLAIN}
TRAIL = Trail("ada", environment_id="demo", session_id="chat-1")


def put(api: Api, name: str, body: dict[str, Any], id: str = "demo") -> dict[str, Any]:
    """Write a Secret that is taken; its info."""
    answer = api.put(f"/v1/environments/{id}/secrets/{name}", body)
    assert answer.status in (200, 201), answer.json
    return dict(answer.json)


def row(id: str = "demo") -> Environment:
    return Environment.objects.get(pk=id)


def secret(name: str = "NAME", id: str = "demo") -> Secret:
    return Secret.objects.get(name=name, vault__environment_uid=row(id).uid)


def permitted(id: str = "demo") -> Permit:
    """The permit that the start of a call gets."""
    return transact(lambda tx: opening.note_use(tx, row(id).uid, trail=TRAIL, now=tx.now()))


def opened(id: str = "demo") -> dict[str, str]:
    """The variables, in clear."""
    return {name: value.reveal_text() for name, value in opening.open_variables(permitted(id)).items()}


def uses() -> list[tuple[str, str | None, str | None]]:
    """Uses in the audit: outcome, name, target."""
    return list(VaultAudit.objects.filter(action="use").order_by("ord").values_list("outcome", "name", "target"))
