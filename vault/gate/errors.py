"""How a connection ends early. Caught inside this package; the sandbox sees ``answers``.

Messages are written here and hold no token, header value or address, and no cause is chained to them: the causes quote
what they stumbled over.
"""

from __future__ import annotations

from vault.gate.doorkeeper import Reason


class Refuse(Exception):
    """Refused by a rule: answered with ``status``, recorded with ``host``, ``port`` and ``reason``."""

    def __init__(
        self, message: str, reason: Reason | None = None, *, host: str = "", port: int | None = None, status: int = 403
    ) -> None:
        super().__init__(message)
        self.message, self.reason, self.host, self.port, self.status = message, reason, host, port, status


class Failed(Exception):
    """The other side did not play along: not found, not reached, not verified, or it broke HTTP. Nobody's refusal."""

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.message, self.status = message, status


class Gone(Exception):
    """The connection is over and nobody is left to answer."""


def misdirected(host: str, port: int = 443) -> Refuse:
    """A server name or ``Host`` that is not the tunnel's."""
    return Refuse("This tunnel is for another host.", "host", host=host, port=port, status=421)


def malformed(message: str) -> Refuse:
    """A request that breaks HTTP, or could be read in two ways."""
    return Refuse(message)
