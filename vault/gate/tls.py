"""TLS over a :class:`~vault.gate.wire.Wire`, driven by hand.

asyncio's own would do, but it cannot begin with bytes that were read already (the ClientHello), and it needs the
connection to itself. Records are taken as they come: a read returns all plaintext that has arrived.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from vault.gate.errors import Failed, Gone
from vault.gate.limits import CHUNK
from vault.gate.wire import Wire

_RECORD = 16 << 10


class Tls:
    """A :class:`~vault.gate.wire.Channel`; one task reads and one writes, both on the same loop."""

    def __init__(self, wire: Wire, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """``server_name``: the host to be verified, for the client's side; without it this is the server's side."""
        self._wire = wire
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_name is None, server_hostname=server_name)
        self._back: list[bytes] = []
        self._over = False

    async def handshake(self, seconds: float) -> None:
        """Raises :class:`Failed` when it fails, is not verified, or takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._handshake()
        except (ssl.SSLError, ssl.CertificateError, TimeoutError):
            await self._flush_quietly()
            raise Failed("TLS with the other side could not be set up.") from None

    async def _handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
                continue
            await self._flush()
            return

    async def _feed(self) -> None:
        data = await self._wire.read()
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    async def _flush(self) -> None:
        if self._out.pending:
            await self._wire.write(self._out.read())

    async def _flush_quietly(self) -> None:
        try:
            await self._flush()
        except Gone:
            return

    def quiet(self) -> bool:
        while data := self._wire.take():
            self._in.write(data)
        try:
            self.unread(self._take())
        except Gone:
            return False
        return not (self._back or self._over or self._in.pending) and self._wire.quiet()

    async def read(self) -> bytes:
        if self._back:
            return self._back.pop()
        while not self._over:
            data = self._take()
            if self._out.pending:
                await self._flush()
            if data or self._over:
                return data
            await self._feed()
        return b""

    def _take(self) -> bytes:
        """All plaintext that has arrived, up to a chunk. A connection cut without a farewell is :class:`Gone`."""
        taken: list[bytes] = []
        size = 0
        try:
            while size < CHUNK:
                data = self._tls.read(_RECORD)
                if not data:
                    self._over = True
                    break
                taken.append(data)
                size += len(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._over = True
        except ssl.SSLError:
            if not taken:
                raise Gone from None
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def unread(self, data: bytes) -> None:
        if data:
            self._back.append(data)

    async def write(self, data: bytes) -> None:
        try:
            self._tls.write(data)
        except ssl.SSLError:
            raise Gone from None
        await self._flush()

    def write_eof(self) -> None:
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        if self._out.pending and not self._wire.closing:
            self._wire.send(self._out.read())
        self._wire.write_eof()

    def abort(self) -> None:
        self._wire.abort()
