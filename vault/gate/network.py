"""The outside: names, addresses, connections, and the trust in real servers.

:class:`Network` holds the four things a test replaces; :func:`real_network` is what production runs, and takes no
option. :class:`Roads` is the one place that connects: to the address that was checked, never to a name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from vault.gate.addresses import is_public
from vault.gate.errors import Failed, Refuse
from vault.gate.inject import Place
from vault.gate.limits import Limits
from vault.gate.tls import Tls
from vault.gate.wire import Channel, Wire

Connect = Callable[[Callable[[], Wire], str, int], Awaitable[Wire]]

_THREADS = 32
_LOOPBACK = {"localhost": ("127.0.0.1", "::1"), "127.0.0.1": ("127.0.0.1",), "::1": ("::1",)}
"""What a ``via`` may name on this machine."""


@dataclass(frozen=True, slots=True)
class Network:
    """How the gate reaches the outside."""

    resolve: Callable[[str], Awaitable[Sequence[str]]]
    """Every address of a name; raises ``OSError`` or returns none when there is none."""
    is_public: Callable[[str], bool]
    connect: Connect
    """Connect a new :class:`Wire` to an address and port; raises ``OSError``."""
    trust: ssl.SSLContext
    """Verifies real servers and their names."""


def real_network() -> Network:
    """System resolver, :func:`~vault.gate.addresses.is_public`, and the system's trusted authorities."""
    trust = ssl.create_default_context()
    trust.minimum_version = ssl.TLSVersion.TLSv1_2
    trust.set_alpn_protocols(["http/1.1"])
    return Network(_Resolver(), is_public, connect_to, trust)


async def connect_to(make: Callable[[], Wire], address: str, port: int) -> Wire:
    """A connection to a literal address."""
    _, wire = await asyncio.get_running_loop().create_connection(make, address, port)
    return wire


class _Resolver:
    """``getaddrinfo`` in threads of its own, so that slow names hold up nothing else.

    The name is asked for with a dot at its end: a search list of this host must not turn it into another one.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")

    async def __call__(self, host: str) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Roads:
    """Ways to servers, within the limits of time."""

    def __init__(self, network: Network, limits: Limits, clock: Callable[[], float]) -> None:
        self._network, self._limits, self._clock = network, limits, clock

    async def checked(self, host: str, port: int) -> list[str]:
        """The addresses of ``host``, all of them public; raises :class:`Refuse` or :class:`Failed`."""
        addresses = await self._resolved(host)
        if not all(self._network.is_public(address) for address in addresses):
            raise Refuse("This host is not on the public internet.", "not_public", host=host, port=port)
        return addresses

    async def connected(self, addresses: Sequence[str], port: int) -> Wire:
        """The first of these addresses that accepts, in their order; raises :class:`Failed`."""
        for address in addresses:
            try:
                async with asyncio.timeout(self._limits.connect):
                    return await self._network.connect(lambda: Wire(self._clock), address, port)
            except (OSError, TimeoutError):
                continue
        raise Failed("The host does not accept a connection.", 504)

    async def to(self, place: Place, addresses: Sequence[str]) -> tuple[Wire, Channel]:
        """A connection for requests, its server verified. ``addresses`` are those that were checked for an origin.

        A ``via`` was allowed by an operator, who alone opens this machine's own network: it is not checked.
        """
        if place.via is not None:
            addresses = _LOOPBACK.get(place.host) or await self._resolved(place.host)
        wire = await self.connected(addresses, place.port)
        if not place.tls:
            return wire, wire
        tls = Tls(wire, self._network.trust, server_name=place.host)
        try:
            await tls.handshake(self._limits.handshake)
        except BaseException:
            wire.abort()
            raise
        return wire, tls

    async def _resolved(self, host: str) -> list[str]:
        try:
            async with asyncio.timeout(self._limits.resolve):
                addresses = list(await self._network.resolve(host))
        except (OSError, UnicodeError, TimeoutError):
            addresses = []
        if not addresses:
            raise Failed("The host has no address.")
        return addresses
