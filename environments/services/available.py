"""Whether pods can be made: asked of the Driver outside every transaction, and carried into it as a value."""

from __future__ import annotations

from dataclasses import dataclass

from environments.errors import BUSY_RETRY, EnvironmentUnavailable


@dataclass(frozen=True, slots=True)
class PodsAvailable:
    """Whether pods can be made now, as the Driver said last; asked before the transaction."""

    driver: str
    ready: bool
    reason: str | None = None

    def require(self, environment_id: str) -> None:
        """Refuse with what is missing: no Driver at all, or one that is not ready yet."""
        if self.ready:
            return
        if self.driver == "none":
            raise EnvironmentUnavailable(
                f"Environment {environment_id} is of kind pod and this installation has no Driver for pods."
            )
        raise EnvironmentUnavailable(
            f"Pods cannot be made now ({self.reason or 'the Driver is not ready'}). Try again.", retry_after=BUSY_RETRY
        )
