"""The bounds of one gate. Times in seconds; sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EGRESS_TUNNELS: Final = 64
EGRESS_IDLE: Final = 300.0
EGRESS_EVENTS: Final = 60
SIGNAL_POLL: Final = 5.0

CHUNK: Final = 256 << 10
"""What is held of one direction of one connection before its sender has to wait; a few times that at the most."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox, and all of them together, may hold."""

    tunnels: int = EGRESS_TUNNELS
    """Open tunnels of one Environment."""
    idle: float = EGRESS_IDLE
    """A tunnel without a byte in either direction for this long is closed."""
    poll: float = SIGNAL_POLL
    """Between two comparisons of the open tunnels with the rows."""
    look: float = 15.0
    """For one such comparison, and for refusals to be handed over; then the next look begins."""
    connections: int = 4096
    """Connections of sandboxes at once; more are closed unheard."""
    waiting: int = 1024
    """Those of them that have sent no head yet; with one more, the oldest of them is closed."""
    head: float = 15.0
    """For a whole head, from its first byte; for the first head, from the connection on."""
    handshake: float = 15.0
    """For a ClientHello and a TLS handshake, each."""
    resolve: float = 10.0
    """For a name to be resolved."""
    connect: float = 5.0
    """For one address to accept a connection."""
    linger: float = 1.0
    """How long what a refused client still sends is read and dropped, so that the answer reaches it."""
    head_bytes: int = 64 << 10
    """A request's or a response's head."""
    headers: int = 256
    """Header lines of a request."""
