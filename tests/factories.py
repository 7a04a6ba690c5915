"""Rows for tests, made the way the product makes them where that is possible."""

from __future__ import annotations

from typing import Any

from environments.commands import PutEnvironment
from environments.services.available import PodsAvailable
from environments.services.put import put_environment
from nylorun.http.caller import Caller

FAKE_PODS = PodsAvailable("fake", ready=True)
CALLER = Caller("application", "app-1")


def environment(id: str = "demo", **inline: Any) -> dict[str, Any]:
    """An Environment made from inline fields; answers its view."""
    labels = inline.pop("labels", None)
    command = PutEnvironment(id, inline=inline, labels=labels)
    return put_environment(command, caller=CALLER, pods=FAKE_PODS, tenant="local").view
