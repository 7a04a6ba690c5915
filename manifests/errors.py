"""What the library refuses, beside the rules that raise it."""

from __future__ import annotations

from nylorun.kernel.errors import Refusal


class ManifestNotFound(Refusal):
    """There is no Manifest of this name, or it has no such version."""

    code, status = "manifest_not_found", 404

    def __init__(self, name: str, version: int | None = None) -> None:
        if version is None:
            message = f"There is no Manifest {name}: save it with PUT /v1/environment-manifests/{name}."
            super().__init__(message, details={"name": name})
        else:
            message = f"Manifest {name} has no version {version}: use one that GET lists, or its name alone."
            super().__init__(message, details={"name": name, "version": version})


class ManifestInUse(Refusal):
    """Environments were made from versions of this Manifest; those being deleted count too."""

    code, status = "manifest_in_use", 409

    def __init__(self, name: str, environments: int) -> None:
        what = "1 Environment was" if environments == 1 else f"{environments} Environments were"
        super().__init__(
            f"Manifest {name} is in use: {what} made from it. Delete them first.",
            details={"environments": environments},
        )


class ContentMismatch(Refusal):
    """The bytes of an upload are not the ones its name promises."""

    code, status = "invalid_request", 400

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(
            f"The content is {actual}, not {expected}: send it under its own hash.",
            details={"expected": expected, "actual": actual},
        )
