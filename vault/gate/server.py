"""The gate itself: listens, lets in, and keeps watch.

One process, one event loop. A connection is one task; whatever it opens ends with it. ``look`` is the gate's pulse: it
closes idle tunnels, compares the open ones with the rows and hands over counted refusals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from vault.gate.answers import answer
from vault.gate.authority import Authority
from vault.gate.bound import serve_bound
from vault.gate.doorkeeper import Doorkeeper, Pass, Refused, Stale, Unavailable
from vault.gate.errors import Failed, Gone, Refuse, malformed
from vault.gate.heads import Request, read_head, read_request, values
from vault.gate.limits import Limits
from vault.gate.network import Network, Roads
from vault.gate.passing import pass_through
from vault.gate.plain import Kept, check_host, serve_plain
from vault.gate.refusals import Refusals
from vault.gate.targets import HTTPS, Target, check_allowed, plain_target, tunnel_target
from vault.gate.tunnels import Tunnels
from vault.gate.visit import House, Visit
from vault.gate.wire import Wire

logger = logging.getLogger(__name__)

_TOKEN_MAX = 4096
_BEARER = b"bearer "


class Gate:
    """An egress proxy. Made and used on one running event loop."""

    def __init__(
        self,
        doorkeeper: Doorkeeper,
        authority: Authority,
        network: Network,
        *,
        clock: Callable[[], float],
        limits: Limits | None = None,
    ) -> None:
        """``clock`` counts seconds and never goes back."""
        self._limits, self._clock = limits or Limits(), clock
        self._house = House(doorkeeper, Roads(network, self._limits, clock), authority, self._limits)
        self._doorkeeper = doorkeeper
        self._tunnels, self._refusals = Tunnels(self._limits.tunnels), Refusals()
        self._servers: list[asyncio.Server] = []
        self._visits: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._stopped = False

    @property
    def tunnels(self) -> int:
        """How many are open."""
        return len(self._tunnels)

    @property
    def connections(self) -> int:
        """How many sandboxes' connections are open."""
        return len(self._visits)

    async def listen(self, host: str, port: int) -> int:
        """Accept on a TCP port; the port, for 0 was asked for."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._wire, host, port, backlog=1024)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def listen_on(self, listener: socket.socket) -> None:
        """Accept on a bound TCP socket, which closes with the gate."""
        self._servers.append(await asyncio.get_running_loop().create_server(self._wire, sock=listener, backlog=1024))

    def revoke(self, environment_id: str, epoch: int) -> int:
        """Close every tunnel of this Environment and this epoch or an older one, now; how many."""
        return self._tunnels.revoke(environment_id, epoch)

    async def watch(self) -> None:
        """Look every ``limits.poll`` seconds until cancelled; a look that fails or hangs does not end the watch."""
        while True:
            await asyncio.sleep(self._limits.poll)
            looking = asyncio.ensure_future(asyncio.wait_for(self.look(), self._limits.look))
            try:
                await asyncio.wait((looking,))
            finally:
                looking.cancel()
            if (error := looking.exception()) is not None:
                logger.error("a look at the open tunnels ended with %s", type(error).__name__)

    async def look(self) -> None:
        """Close idle tunnels and revoked ones, and hand over the refusals whose time is over."""
        self._tunnels.end_idle(self._clock() - self._limits.idle)
        await self._record(self._refusals.due(self._clock()))
        asked = self._tunnels.passes()
        if not asked:
            return
        try:
            self._tunnels.compared(asked, await self._doorkeeper.compare(asked))
        except Unavailable:
            logger.warning("open tunnels could not be compared")

    async def stop(self) -> None:
        """Stop listening, close every connection, and hand over what is still counted."""
        self._stopped = True
        for server in self._servers:
            server.close()
        for visit in list(self._visits):
            visit.cancel()
        if self._visits:
            await asyncio.wait(self._visits)
        await self._record(self._refusals.all(self._clock()))

    def _wire(self) -> Wire:
        return Wire(self._clock, self._accept)

    def _accept(self, wire: Wire) -> None:
        if len(self._visits) >= self._limits.connections or self._stopped:
            wire.abort()
            return
        if len(self._waiting) >= self._limits.waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        visit = asyncio.get_running_loop().create_task(self._visit(wire))
        self._visits.add(visit)
        self._waiting[visit] = None
        visit.add_done_callback(partial(self._left, wire))

    def _left(self, wire: Wire, visit: asyncio.Task[None]) -> None:
        self._visits.discard(visit)
        self._waiting.pop(visit, None)
        wire.abort()
        error = None if visit.cancelled() else visit.exception()
        if error is not None:  # a bug of ours; its text may quote what a sandbox or a server sent
            logger.error("a connection ended with %s", type(error).__name__)

    async def _visit(self, wire: Wire) -> None:
        visit = Visit(wire, wire)
        try:
            await self._requests(visit)
        except Gone:
            pass
        except Unavailable:
            await self._say(visit, Failed("The installation does not answer.", 503))
        except Failed as failed:
            await self._say(visit, failed)
        except Refuse as refuse:
            await self._refused(visit, refuse)

    async def _requests(self, visit: Visit) -> None:
        kept = Kept()
        try:
            raw = await self._first_head(visit)
            while raw is not None:
                visit.channel = visit.wire
                request = read_request(raw, self._limits)
                if request.method == b"CONNECT":
                    await self._tunnel(visit, request)
                    return
                raw = await self._plain(visit, request, kept)
        finally:
            kept.drop()

    async def _first_head(self, visit: Visit) -> bytes | None:
        try:
            async with asyncio.timeout(self._limits.head):
                return await read_head(visit.wire, self._limits)
        except TimeoutError:
            raise Gone from None
        finally:
            if (task := asyncio.current_task()) is not None:
                self._waiting.pop(task, None)

    async def _tunnel(self, visit: Visit, request: Request) -> None:
        admitted, target, _ = await self._let_in(visit, request)
        with self._tunnels.opened(admitted, target, visit.wire) as tunnel:
            if target.port == HTTPS and target.host in admitted.bound:
                await serve_bound(visit, tunnel, self._house)
            else:
                await pass_through(visit, tunnel, self._house)

    async def _plain(self, visit: Visit, request: Request, kept: Kept) -> bytes | None:
        """Serve a request and read the head of the next, within its tunnel: a kept connection counts as one."""
        admitted, target, path = await self._let_in(visit, request)
        check_host(request, target)
        with self._tunnels.opened(admitted, target, visit.wire) as tunnel:
            if not await serve_plain(visit, tunnel, request, path, kept, self._house):
                await visit.wire.finish()
                return None
            return await read_head(visit.wire, self._limits)

    async def _let_in(self, visit: Visit, request: Request) -> tuple[Pass, Target, str]:
        """The token comes first: without a good one nothing is said about the target."""
        try:
            found: tuple[Target, str] | Refuse = _target(request)
        except Refuse as refuse:
            found = refuse
        with self._tunnels.admission() as admission:
            admitted = await self._doorkeeper.admit(_token(request))
            visit.whose = admitted.whose
            if isinstance(admitted, Stale) or not admission.outlived_by(admitted):
                visit.target = None if isinstance(found, Refuse) else found[0]
                raise _no_token()
        if isinstance(found, Refuse):
            raise found
        visit.target = found[0]
        check_allowed(found[0], admitted)
        return admitted, *found

    async def _refused(self, visit: Visit, refuse: Refuse) -> None:
        if visit.whose is not None:
            target = visit.target
            host = refuse.host or (target.host if target else "?")
            port = refuse.port or (target.port if target else None)
            await self._record(self._refusals.note(visit.whose, host, port, refuse.reason, self._clock()))
        await self._say(visit, refuse)

    async def _say(self, visit: Visit, ended: Refuse | Failed) -> None:
        """Answer where there is somebody to hear it, and let the answer arrive before the connection closes."""
        if visit.channel is None:
            return
        with suppress(Gone, TimeoutError):
            async with asyncio.timeout(self._limits.linger):
                await visit.channel.write(answer(ended))
                visit.channel.write_eof()
                while await visit.wire.read():
                    continue

    async def _record(self, refused: list[Refused]) -> None:
        if not refused:
            return
        try:
            await self._doorkeeper.record(refused)
        except Unavailable:
            logger.warning("%d refusals could not be recorded", len(refused))


def _target(request: Request) -> tuple[Target, str]:
    if request.method != b"CONNECT":
        return plain_target(request.target)
    if request.framing != 0:
        raise malformed("CONNECT has no body.")
    return tunnel_target(request.target), ""


def _token(request: Request) -> str:
    shown = values(request.headers, b"proxy-authorization")
    if len(shown) != 1 or not shown[0].lower().startswith(_BEARER) or len(shown[0]) > _TOKEN_MAX + len(_BEARER):
        raise _no_token()
    return shown[0][len(_BEARER) :].strip().decode("latin-1")


def _no_token() -> Refuse:
    return Refuse("The egress token is missing, wrong or over.", "token")
