"""What the Environments refuse, beside the rules that raise it. HTTP is known elsewhere (``nylorun/http/handler.py``).

The word before ``_`` follows the noun a row was made through; all rows here are of noun ``environment``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from nylorun.kernel.errors import Fault, Refusal

BUSY_RETRY = 5


def path_of(environment_id: str) -> str:
    """The id as one segment of a path, percent-encoded."""
    return quote(environment_id, safe="")


class EnvironmentImmutable(Refusal):
    """An Environment never changes what it runs. Fork it, or use another id."""

    code, status = "environment_immutable", 409

    def __init__(self, environment_id: str, fields: Sequence[str], manifest: str | None) -> None:
        verb = "differs" if len(fields) == 1 else "differ"
        details: dict[str, Any] = {"fields": list(fields)}
        if manifest is not None:
            details["manifest"] = manifest
        super().__init__(
            f"Environment {environment_id} keeps what it runs ({', '.join(fields)} {verb}): "
            f"fork it with POST /v1/environments/{path_of(environment_id)}/fork or use another id.",
            details=details,
        )


class EnvironmentOwnerMismatch(Refusal):
    """The owner guard is set for somebody else."""

    code, status = "environment_owner_mismatch", 403


class EnvironmentBusy(Refusal):
    """A call runs, its disk is being copied, or it is being deleted. With Retry-After when waiting helps."""

    code, status = "environment_busy", 409


class EnvironmentLost(Refusal):
    """Its volume or machine is gone: reset it, restore a Disk version, or delete it."""

    code, status = "environment_lost", 409

    def __init__(self, environment_id: str, reason: str | None) -> None:
        super().__init__(
            f"Environment {environment_id} has lost its disk ({reason or 'unknown'}): "
            f"reset it with POST /v1/environments/{path_of(environment_id)}/reset or delete it.",
            details={"reason": reason} if reason else None,
        )


class EnvironmentUnavailable(Refusal):
    """It is gone, has no sandbox, or this installation cannot run it now."""

    code, status = "environment_unavailable", 409


class EnvironmentStarting(Fault):
    """A call waited its whole time for the Environment to be ready; it goes on starting."""

    code, status = "environment_starting", 503

    def __init__(self, environment_id: str) -> None:
        super().__init__(f"Environment {environment_id} is still starting. Send the call again.", retry_after=5)


class DiskVersionNotFound(Refusal):
    """There is no such Disk version."""

    code, status = "disk_version_not_found", 404

    def __init__(self, environment_id: str, version: int | str) -> None:
        super().__init__(f"Environment {environment_id} has no Disk version {version}.", details={"version": version})


class TenantResetting(Refusal):
    """A reset of the Tenant drains: nothing new begins until it is over."""

    code, status = "tenant_resetting", 409


class JoinRefused(Refusal):
    """A join or renewal is refused; one text for every reason, which is only logged."""

    code, status = "join_refused", 401

    def __init__(self) -> None:
        super().__init__("Join refused")


class EffectRunning(Refusal):
    """A call with this key runs at this moment."""

    code, status = "effect_running", 409


def being_deleted(environment_id: str) -> EnvironmentBusy:
    """The refusal while a deleted pod's machine is still going."""
    return EnvironmentBusy(f"Environment {environment_id} is being deleted.", retry_after=BUSY_RETRY)


def call_runs(environment_id: str) -> EnvironmentBusy:
    """The refusal while a call or Turn runs."""
    return EnvironmentBusy(f"A call runs on Environment {environment_id}: wait for its end.")


def lease_held(environment_id: str) -> EnvironmentBusy:
    """The refusal while a snapshot or restore holds the disk."""
    return EnvironmentBusy(f"The disk of Environment {environment_id} is being copied.", retry_after=BUSY_RETRY)


def still_retiring(environment_id: str) -> EnvironmentBusy:
    """The refusal while an earlier volume is still being deleted."""
    return EnvironmentBusy(
        f"An earlier disk of Environment {environment_id} is still being removed.", retry_after=BUSY_RETRY
    )


class DiskCopyFailed(Fault):
    """Copying the disk kept failing. What was there is as it was."""

    code, status = "disk_copy_failed", 503

    def __init__(self, reason: str) -> None:
        super().__init__(f"The disk could not be copied: {reason}", details={"reason": reason})


class SetupFailed(Refusal):
    """A setup command failed on the new disk (Operations only)."""

    code, status = "setup_failed", 409


class OperationFinished(Refusal):
    """It ended before it could be cancelled."""

    code, status = "operation_finished", 409

    def __init__(self, operation_id: str, state: str) -> None:
        super().__init__(f"Operation {operation_id} is {state} already.", details={"state": state})


class OperationCancelled(Refusal):
    """The Operation this request waited for was cancelled."""

    code, status = "operation_cancelled", 409

    def __init__(self, operation_id: str) -> None:
        super().__init__(f"Operation {operation_id} was cancelled.", details={"operationId": operation_id})


class OperationInterrupted(Fault):
    """Its lease lapsed or was taken over, or its attempts ran out: nothing was changed, ask again."""

    code, status = "operation_interrupted", 503

    def __init__(self, operation_id: str, message: str = "It was interrupted too often. Ask again.") -> None:
        super().__init__(message, details={"operationId": operation_id}, retry_after=BUSY_RETRY)
