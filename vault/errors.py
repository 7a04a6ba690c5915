"""What the vault refuses, beside the rules that raise it. HTTP is known elsewhere (``nylorun/http/handler.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from nylorun.kernel.errors import Refusal


class CredentialConflict(Refusal):
    """Another Secret sets the same header on the same host, or has this name with another type."""

    code, status = "credential_conflict", 409

    def __init__(self, message: str, other: str) -> None:
        super().__init__(message, details={"with": other})


class SecretNotInManifest(Refusal):
    """Slots are declared, and this name is none of them or its body has another binding than its Slot."""

    code, status = "secret_not_in_manifest", 409

    def __init__(self, message: str, declared: Sequence[str] | None = None) -> None:
        super().__init__(message, details=None if declared is None else {"declared": sorted(declared)})
