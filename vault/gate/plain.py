"""Plain ``http://`` requests in absolute form, to port 80: package mirrors. Never with a Secret.

Each request is let in on its own token, whatever came before it on the connection; the server of the last one is kept
for the next to the same host.
"""

from __future__ import annotations

from dataclasses import dataclass

from vault.gate.errors import misdirected
from vault.gate.exchange import Exchange
from vault.gate.heads import Request
from vault.gate.inject import passed_on
from vault.gate.targets import HTTP, Target
from vault.gate.tunnels import Tunnel
from vault.gate.visit import House, Visit
from vault.gate.wire import Wire


@dataclass(slots=True)
class Kept:
    """The server of the last request on one connection."""

    host: str = ""
    wire: Wire | None = None

    def drop(self) -> None:
        """Let go of it."""
        if self.wire is not None:
            self.wire.abort()
        self.host, self.wire = "", None


def check_host(request: Request, target: Target) -> None:
    """Refuse a ``Host`` that is not the URL's."""
    if request.host not in {target.host, f"{target.host}:{HTTP}"}:
        raise misdirected(target.host, HTTP)


async def serve_plain(visit: Visit, tunnel: Tunnel, request: Request, path: str, kept: Kept, house: House) -> bool:
    """Serve one request; false when the connection is over."""
    wire = await _server(tunnel, kept, house)
    tunnel.wires.append(wire)
    exchange = Exchange(visit.wire, wire, visit.wire, house.limits)
    with visit.answering(exchange):
        return await exchange.run(request, path, passed_on(request, tunnel.target.host))


async def _server(tunnel: Tunnel, kept: Kept, house: House) -> Wire:
    target = tunnel.target
    addresses = await house.roads.checked(target.host, target.port)
    if kept.wire is not None and kept.host == target.host and kept.wire.quiet():
        return kept.wire
    kept.drop()
    kept.wire = await house.roads.connected(addresses, target.port)
    kept.host = target.host
    return kept.wire
