"""Tunnels to hosts with a bound Secret: TLS ends here, headers are set, and the real server is verified.

* The server name of the handshake and each request's ``Host`` are the tunnel's host, else 421 and the tunnel closes.
* A server is connected to when a request needs it, and stays this tunnel's own: nothing is shared between tunnels.
* Secrets are opened once for a tunnel, before it is established; a ``via`` is asked about at each request.
"""

from __future__ import annotations

import asyncio

from vault.gate.answers import ESTABLISHED
from vault.gate.doorkeeper import CannotOpen
from vault.gate.errors import Failed, Gone, Refuse, malformed, misdirected
from vault.gate.exchange import Exchange
from vault.gate.heads import Request, read_head, read_request
from vault.gate.hello import read_hello
from vault.gate.inject import Place, Plan, Rule, plan, rules_of
from vault.gate.tls import Tls
from vault.gate.tunnels import Tunnel
from vault.gate.visit import House, Visit
from vault.gate.wire import Channel, Wire


async def serve_bound(visit: Visit, tunnel: Tunnel, house: House) -> None:
    """Serve one ``CONNECT`` to its end."""
    rules = await _opened(tunnel, house)
    servers = _Servers(tunnel, house)
    try:
        tls = await _accepted(visit, tunnel, house)
        while await _one_request(visit, tls, tunnel, rules, servers, house):
            continue
        tls.write_eof()
        await visit.wire.finish()
    finally:
        servers.abort()


async def _opened(tunnel: Tunnel, house: House) -> tuple[Rule, ...]:
    host = tunnel.target.host
    try:
        return rules_of(await house.doorkeeper.open(tunnel.admitted, host), tunnel.admitted.subject)
    except CannotOpen:
        raise Refuse("A secret for this host could not be read.", "secret", host=host, port=443) from None


async def _accepted(visit: Visit, tunnel: Tunnel, house: House) -> Tls:
    host, limits = tunnel.target.host, house.limits
    context = house.authority.context(host)
    await visit.wire.write(ESTABLISHED)
    visit.channel = None
    try:
        async with asyncio.timeout(limits.handshake):
            raw, name = await read_hello(visit.wire)
    except TimeoutError:
        raise Gone from None
    if not raw:
        raise Gone
    visit.wire.unread(raw)
    tls = Tls(visit.wire, context)
    try:
        await tls.handshake(limits.handshake)
        visit.channel = tls
    except Failed:
        if name == host:
            raise
    if name != host:
        raise misdirected(host)
    return tls


async def _one_request(
    visit: Visit, tls: Tls, tunnel: Tunnel, rules: tuple[Rule, ...], servers: _Servers, house: House
) -> bool:
    """Serve the next request; false when the tunnel is over."""
    raw = await read_head(tls, house.limits)
    if raw is None:
        return False
    request = read_request(raw, house.limits)
    _check(request, tunnel.target.host)
    planned = plan(request, tunnel.target.host, rules)
    await _check_via(planned, tunnel, house)
    server, kept = await servers.to(planned.place)
    exchange = Exchange(tls, server, visit.wire, house.limits)
    with visit.answering(exchange):
        try:
            return await exchange.run(request, planned.target, planned.headers)
        except Failed:
            if kept and not exchange.answered:
                raise Gone from None  # it closed a kept connection: a client sends such a request again
            raise


def _check(request: Request, host: str) -> None:
    """Refuse a request that names another host, or its target in another form than a path."""
    if request.host not in {host, f"{host}:443"}:
        raise misdirected(host)
    _, absolute, rest = request.target.partition("://")
    if absolute and not request.target.startswith("/"):
        authority = rest.partition("/")[0].lower()
        if authority not in {host, f"{host}:443"}:
            raise misdirected(host)
    if not request.target.startswith("/") or "#" in request.target:
        raise malformed("A request inside a tunnel names a path.")


async def _check_via(planned: Plan, tunnel: Tunnel, house: House) -> None:
    via = planned.place.via
    if via is not None and not await house.doorkeeper.via_allowed(tunnel.admitted, via):
        raise Refuse(
            "The gateway of this secret is not allowed here.", "not_allowed", host=tunnel.target.host, port=443
        )


class _Servers:
    """The connections of one tunnel, one for each place its requests go to."""

    def __init__(self, tunnel: Tunnel, house: House) -> None:
        self._tunnel, self._house = tunnel, house
        self._open: dict[Place, tuple[Wire, Channel]] = {}

    async def to(self, place: Place) -> tuple[Channel, bool]:
        """A connection to ``place``, and whether it served a request before."""
        kept = self._open.get(place)
        if kept is not None and kept[1].quiet():
            return kept[1], True
        if kept is not None:
            self._drop(place)
        roads, target = self._house.roads, self._tunnel.target
        addresses = [] if place.via is not None else await roads.checked(target.host, target.port)
        wire, channel = await roads.to(place, addresses)
        self._open[place] = (wire, channel)
        self._tunnel.wires.append(wire)
        return channel, False

    def _drop(self, place: Place) -> None:
        wire, _ = self._open.pop(place)
        self._tunnel.wires.remove(wire)
        wire.abort()

    def abort(self) -> None:
        """Drop all of them."""
        for place in list(self._open):
            self._drop(place)
