"""The protocol header: one integer, 14 to 16; absent means the newest.

Whether sandbox pods can be made now is known further up: ``environments`` registers :attr:`Features.sandbox_pods`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from nylorun.kernel.errors import ProtocolUnsupported

OLDEST, NEWEST = 14, 16
_INTEGER = re.compile(r"[0-9]{1,9}", re.ASCII)
_IGNORED_ON = ("v1/openapi.json", "v1/docs", "v1/schemas/", "v1/artifact-links/", "v1/access/jwks", "v1/engine/")
_NEWEST_ONLY = re.compile(r"v1/(?:agents|agent-manifests)(?:/|$)")


class Features:
    """What this installation can do beside the fixed list."""

    sandbox_pods: Callable[[], bool] = staticmethod(lambda: False)


def offer() -> dict[str, Any]:
    """The served range and features, as 426 and ``/v1/me`` show them."""
    features = ["agents", "environments", "subject-tokens", "tenant-fixture-model"]
    if Features.sandbox_pods():
        features = sorted([*features, "sandbox-pods"])
    return {"min": OLDEST, "max": NEWEST, "features": features}


def served(header: str | None) -> int:
    """The protocol an answer names: the request's when it is served, else the newest."""
    if header is None or _INTEGER.fullmatch(header) is None:
        return NEWEST
    return int(header) if OLDEST <= int(header) <= NEWEST else NEWEST


def check(header: str | None, route: str) -> None:
    """Raise :class:`ProtocolUnsupported` for a declared protocol that ``route`` (no leading slash) does not serve."""
    if header is None or not route.startswith("v1/") or route.startswith(_IGNORED_ON):
        return
    oldest = NEWEST if _NEWEST_ONLY.match(route) else OLDEST
    if _INTEGER.fullmatch(header) is None or not oldest <= int(header) <= NEWEST:
        shown = header if header.isprintable() and len(header) <= 20 else "of this request"
        raise ProtocolUnsupported(f"Protocol {shown} is not served: use {OLDEST} to {NEWEST}.", details=offer())
