"""One end of a TCP connection as chunks: what arrived is taken without copying, what leaves waits for the peer.

A plain asyncio stream would do, but for three things the gate needs: to put bytes back (a head and a ClientHello are
looked at before it is known who reads them), to know when a byte last moved, and to hear a hang-up while nobody reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from vault.gate.errors import Gone
from vault.gate.limits import CHUNK


class Channel(Protocol):
    """Bytes in both directions: a :class:`Wire`, or TLS over one."""

    async def read(self) -> bytes:
        """The next bytes; empty at the end. Raises :class:`Gone`."""

    def unread(self, data: bytes) -> None:
        """Put bytes back that the next ``read`` returns."""

    async def write(self, data: bytes) -> None:
        """Send, and wait while the peer is behind. Raises :class:`Gone`."""

    def write_eof(self) -> None:
        """Say that nothing follows."""

    def abort(self) -> None:
        """Drop the connection at once."""

    def quiet(self) -> bool:
        """Whether it can carry another request: the peer has neither ended it nor sent what nobody asked for."""


class Wire(asyncio.Protocol):
    """See the module; one task reads and one writes."""

    def __init__(self, clock: Callable[[], float], opened: Callable[[Wire], None] | None = None) -> None:
        self._clock, self._opened = clock, opened
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._reader: asyncio.Future[None] | None = None
        self._flowing, self._over = asyncio.Event(), asyncio.Event()
        self._flowing.set()
        self._paused = self._eof = self.lost = False
        self.moved_at = clock()
        """When a byte last moved."""
        self.on_hangup: Callable[[], None] | None = None
        """Called once the peer has ended its side, while set."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=CHUNK)
        if self._opened is not None:
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        self.moved_at = self._clock()
        self._chunks.append(data)
        self._held += len(data)
        if self._held >= CHUNK and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._end()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._end()
        self._flowing.set()
        self._over.set()

    def pause_writing(self) -> None:
        self._flowing.clear()

    def resume_writing(self) -> None:
        self._flowing.set()

    def _end(self) -> None:
        self._eof = True
        self._wake()
        if self.on_hangup is not None:
            self.on_hangup()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def quiet(self) -> bool:
        return not self._eof and not self._chunks

    def ended(self) -> bool:
        """Whether nothing more can arrive and nothing is left to read."""
        return self._eof and not self._chunks

    def take(self) -> bytes:
        """What is there now, or nothing."""
        if not self._chunks:
            return b""
        data = self._chunks.popleft()
        self._held -= len(data)
        if self._paused and self._held < CHUNK and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def read(self) -> bytes:
        while not self._chunks:
            if self._eof:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self.take()

    def unread(self, data: bytes) -> None:
        if data:
            self._chunks.appendleft(data)
            self._held += len(data)

    def send(self, data: bytes) -> None:
        """Send without waiting: for a few last bytes."""
        if self._transport is None or self._transport.is_closing():
            raise Gone
        self._transport.write(data)
        self.moved_at = self._clock()

    async def write(self, data: bytes) -> None:
        self.send(data)
        if not self._flowing.is_set():
            await self._flowing.wait()
            self.moved_at = self._clock()

    def write_eof(self) -> None:
        if self._transport is not None and not self.closing:
            with suppress(OSError):  # the peer is gone already
                self._transport.write_eof()

    @property
    def closing(self) -> bool:
        """Whether it was closed here, or is lost."""
        return self._transport is None or self._transport.is_closing()

    async def finish(self) -> None:
        """Close, and wait until everything that was sent is with the peer, or the connection is lost."""
        if self._transport is not None:
            self._transport.close()
            await self._over.wait()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
