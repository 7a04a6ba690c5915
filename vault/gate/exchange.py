"""One request and its answer, from the sandbox's side to the server's and back, without holding a body.

Bodies of a known length are copied as they come. Chunked ones are read by h11 and framed anew, so that no reading of a
chunk but ours reaches the server; trailers of a request are dropped, since a header could be hidden among them. Heads
of answers are passed on byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import h11

from vault.gate.errors import Failed, Gone, Refuse, malformed
from vault.gate.heads import Headers, Request, Response, read_head, read_response
from vault.gate.limits import Limits
from vault.gate.wire import Channel, Wire

_TURN = 500
"""Parts of a chunked body that are parsed before others have their turn: tiny chunks cost far more than their bytes."""


class Exchange:
    """Forwards one request. ``answered`` tells whether any of the answer has reached the sandbox."""

    def __init__(self, client: Channel, server: Channel, wire: Wire, limits: Limits) -> None:
        """``wire`` is the sandbox's connection beneath ``client``: its hang-up ends a wait for the server."""
        self._client, self._server, self._wire, self._limits = client, server, wire, limits
        self.answered = False

    async def run(self, request: Request, target: str, headers: Headers) -> bool:
        """Send ``request`` with this target and these headers; true when both connections can carry another one.

        Raises :class:`Refuse` for a body that breaks HTTP, :class:`Failed` for an answer that does, :class:`Gone`.
        """
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._limits.head_bytes)
        await self._server.write(_head(parser, request.method, target, headers))
        if request.framing == 0:
            return await self._answer(parser, request)
        sending = asyncio.create_task(self._send_body(request))
        try:
            again = await self._answer(parser, request)
        except (Failed, Gone):
            _raise_from(sending)
            raise
        finally:
            unsent = not sending.done()
            sending.cancel()
            await asyncio.wait((sending,))
        return again and not unsent and sending.exception() is None

    async def _send_body(self, request: Request) -> None:
        try:
            if isinstance(request.framing, int):
                await _copy(self._client, self._server.write, request.framing)
            else:
                await _copy_chunks(self._client, self._server.write, request.parser, trailers=False)
        except h11.ProtocolError:
            self._server.abort()
            raise malformed("The body of the request is malformed.") from None
        except (Failed, Gone):  # cut off: the sandbox is gone
            self._server.abort()
            raise Gone from None

    async def _answer(self, parser: h11.Connection, request: Request) -> bool:
        response = await self._final_head(parser, request.method)
        if isinstance(response.framing, int):
            await _copy(self._server, self._client.write, response.framing)
        elif response.framing == "chunked":
            await self._chunks(parser)
        else:
            await _copy_all(self._server, self._client.write)
        return not (response.close or request.close)

    async def _chunks(self, parser: h11.Connection) -> None:
        try:
            await _copy_chunks(self._server, self._client.write, parser, trailers=True)
        except h11.ProtocolError:
            raise Failed("The server's answer is not HTTP/1.1.") from None

    async def _final_head(self, parser: h11.Connection, method: bytes) -> Response:
        with self._hangup_ends():
            while True:
                try:
                    raw = await read_head(self._server, self._limits)
                except (Refuse, Gone):
                    raise Failed("The server's answer is too large, too slow or cut off.") from None
                if raw is None:
                    raise Failed("The server closed the connection without an answer.")
                response = read_response(raw, parser, method)
                self.answered = True
                await self._client.write(raw)
                if response.status >= 200:
                    return response

    @contextmanager
    def _hangup_ends(self) -> Iterator[None]:
        """A sandbox that hangs up while the server thinks ends the request there too."""
        self._wire.on_hangup = self._server.abort
        try:
            if self._wire.ended():
                self._server.abort()
            yield
        finally:
            self._wire.on_hangup = None


def _head(parser: h11.Connection, method: bytes, target: str, headers: Headers) -> bytes:
    try:
        head = parser.send(h11.Request(method=method, target=target.encode("ascii"), headers=headers))
    except h11.ProtocolError:  # quotes the header it does not take
        raise malformed("The request is not HTTP/1.1.") from None
    return head or b""


def _raise_from(sending: asyncio.Task[None]) -> None:
    """When the body was at fault, the server's silence is only what followed."""
    if sending.done() and not sending.cancelled() and (error := sending.exception()) is not None:
        raise error


async def _copy(source: Channel, write: Callable[[bytes], Awaitable[None]], length: int) -> None:
    while length:
        data = await source.read()
        if not data:
            raise Failed("The body is cut off.")
        if len(data) > length:
            source.unread(data[length:])
            data = data[:length]
        length -= len(data)
        await write(data)


async def _copy_all(source: Channel, write: Callable[[bytes], Awaitable[None]]) -> None:
    while data := await source.read():
        await write(data)


async def _copy_chunks(
    source: Channel, write: Callable[[bytes], Awaitable[None]], parser: h11.Connection, *, trailers: bool
) -> None:
    while True:
        data = await source.read()
        if not data:
            raise Failed("The body is cut off.")
        parser.receive_data(data)
        more = True
        while more:
            chunks, end, more = _parsed(parser)
            if end is not None:
                source.unread(parser.trailing_data[0])
                chunks.append(_last_chunk(end.headers.raw_items() if trailers else []))
            if chunks:
                await write(b"".join(chunks))
            if end is not None:
                return
            await asyncio.sleep(0)


def _parsed(parser: h11.Connection) -> tuple[list[bytes], h11.EndOfMessage | None, bool]:
    """The next chunks, framed anew; the end, when it came; and whether there is more to parse at once."""
    chunks: list[bytes] = []
    for _ in range(_TURN):
        event = parser.next_event()
        if isinstance(event, h11.EndOfMessage):
            return chunks, event, False
        if not isinstance(event, h11.Data):
            return chunks, None, False
        if event.data:
            chunks += (b"%x\r\n" % len(event.data), event.data, b"\r\n")
    return chunks, None, True


def _last_chunk(trailers: Headers) -> bytes:
    return b"0\r\n" + b"".join(b"%s: %s\r\n" % (name, value) for name, value in trailers) + b"\r\n"
