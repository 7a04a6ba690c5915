"""Tunnels that pass through untouched: to 443 once the client has shown the tunnel's host as server name, and to 80."""

from __future__ import annotations

import asyncio

from vault.gate.answers import ESTABLISHED
from vault.gate.errors import Gone, misdirected
from vault.gate.hello import UNRECOGNIZED_NAME, read_hello
from vault.gate.targets import HTTPS, Target
from vault.gate.tunnels import Tunnel
from vault.gate.visit import House, Visit
from vault.gate.wire import Wire


async def pass_through(visit: Visit, tunnel: Tunnel, house: House) -> None:
    """Serve one ``CONNECT`` to its end."""
    target = tunnel.target
    addresses = await house.roads.checked(target.host, target.port)
    server = await house.roads.connected(addresses, target.port)
    tunnel.wires.append(server)
    try:
        await visit.wire.write(ESTABLISHED)
        visit.channel = None
        if target.port == HTTPS:
            await _show_hello(visit.wire, server, target, house.limits.handshake)
        await _relay(visit.wire, server)
        await server.finish()
        await visit.wire.finish()
    finally:
        server.abort()


async def _show_hello(client: Wire, server: Wire, target: Target, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            raw, name = await read_hello(client)
    except TimeoutError:
        raise Gone from None
    if not raw:
        raise Gone
    if name != target.host:
        client.send(UNRECOGNIZED_NAME)
        raise misdirected(target.host, target.port)
    await server.write(raw)


async def _relay(client: Wire, server: Wire) -> None:
    """Until both sides have ended theirs; raises :class:`Gone` when one breaks off."""
    ways = [asyncio.create_task(_carry(client, server)), asyncio.create_task(_carry(server, client))]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)


async def _carry(source: Wire, sink: Wire) -> None:
    while data := await source.read():
        await sink.write(data)
    if source.lost:
        raise Gone
    sink.write_eof()
