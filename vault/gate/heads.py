"""Heads of HTTP/1.1 messages, read strictly. h11 parses; what it forgives is refused here before it sees it.

Refused in a request, each because two servers could read it as two things: bare CR or LF, folded lines, a blank line
ahead, another version (but for ``CONNECT``, which widespread clients send as HTTP/1.0), both ``Content-Length`` and
``Transfer-Encoding``, either of them twice, any coding but ``chunked``, no ``Host`` or two, a ``Connection`` that names
other headers. So are ``TRACE``, which would send a set header back, and ``Upgrade``, after which the connection is no
longer HTTP/1.1 (a WebSocket to a host with a Secret is thus refused).
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Literal

import h11

from vault.gate.errors import Failed, Gone, malformed
from vault.gate.limits import Limits
from vault.gate.wire import Channel

Headers = list[tuple[bytes, bytes]]
Framing = int | Literal["chunked", "until_close"]
"""How long a body is: so many bytes, or as its chunks say, or until the connection ends."""

_END = b"\r\n\r\n"
_BARE = re.compile(rb"(?<!\r)\n")
_LINE = re.compile(rb"[^\r\n\0]+")
_DIGITS = re.compile(rb"[0-9]{1,18}")
_CONNECTION = frozenset({b"close", b"keep-alive", b"te"})
_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
_ECHOES = frozenset({b"TRACE", b"TRACK"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request that can be read in one way only. ``host`` is its ``Host``, lower-cased; empty only for ``CONNECT``.

    ``parser`` has read the head and reads the chunks of a chunked body.
    """

    method: bytes
    target: str
    headers: Headers
    host: str
    framing: Framing
    close: bool
    parser: h11.Connection


@dataclass(frozen=True, slots=True)
class Response:
    """A response's head as it came, and what follows it."""

    raw: bytes
    status: int
    framing: Framing
    close: bool


async def read_head(channel: Channel, limits: Limits) -> bytes | None:
    """The bytes up to and with the blank line, or ``None`` at the end of the connection. What follows stays unread.

    Waits for a first byte without a bound of its own, then at most ``limits.head``. Raises :class:`Refuse` for a head
    that is too large or too slow, and :class:`Gone` for one that is cut off.
    """
    data = await channel.read()
    if not data:
        return None
    end = data.find(_END)
    if 0 <= end <= limits.head_bytes - len(_END):
        channel.unread(data[end + len(_END) :])
        return data[: end + len(_END)]
    try:
        async with asyncio.timeout(limits.head):
            return await _rest_of_head(channel, bytearray(data), limits.head_bytes)
    except TimeoutError:
        raise malformed("The head of the message took too long.") from None


async def _rest_of_head(channel: Channel, head: bytearray, largest: int) -> bytes:
    searched = 0
    while True:
        end = head.find(_END, searched)
        if 0 <= end <= largest - len(_END):
            channel.unread(bytes(head[end + len(_END) :]))
            return bytes(head[: end + len(_END)])
        if len(head) >= largest:
            raise malformed("The head of the message is too large.")
        if _BARE.search(head, max(0, searched - 1)):
            raise malformed("The head holds a line break or a NUL where none belongs.")
        searched = max(0, len(head) - len(_END) + 1)
        data = await channel.read()
        if not data:
            raise Gone
        head += data


def read_request(raw: bytes, limits: Limits) -> Request:
    """Parse a request's head; raises :class:`Refuse`, whose message quotes nothing of it."""
    _check_lines(raw, limits.headers)
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
    try:
        parser.receive_data(raw)
        event = parser.next_event()
    except h11.ProtocolError:
        raise malformed("The request is not HTTP/1.1.") from None
    if not isinstance(event, h11.Request) or not (event.http_version == b"1.1" or event.method == b"CONNECT"):
        raise malformed("The request is not HTTP/1.1.")
    headers: Headers = event.headers.raw_items()
    return Request(
        method=event.method,
        target=event.target.decode("ascii"),
        headers=headers,
        host=_host(headers),
        framing=_framing(event.method, headers),
        close=_says_close(headers),
        parser=parser,
    )


def read_response(raw: bytes, parser: h11.Connection, method: bytes) -> Response:
    """Parse a response's head with the parser of the request it answers; raises :class:`Failed`."""
    try:
        parser.receive_data(raw)
        event = parser.next_event()
    except h11.ProtocolError:
        raise Failed("The server's answer is not HTTP/1.1.") from None
    if not isinstance(event, h11.Response | h11.InformationalResponse) or event.status_code == 101:
        raise Failed("The server's answer is not HTTP/1.1.")
    headers: Headers = event.headers.raw_items()
    status = event.status_code
    if method == b"HEAD" or status < 200 or status in {204, 304}:
        framing: Framing = 0
    else:
        framing = _framing_of_answer(headers)
    close = _says_close(headers) or event.http_version != b"1.1" or framing == "until_close"
    return Response(raw, status, framing, close)


def values(headers: Headers, name: bytes) -> list[bytes]:
    """Every value of a header, by its lower-cased name."""
    return [value for key, value in headers if key.lower() == name]


def _check_lines(raw: bytes, most: int) -> None:
    lines = raw[: -len(_END)].split(b"\r\n")
    if not all(_LINE.fullmatch(line) for line in lines):
        raise malformed("The head holds a line break or a NUL where none belongs.")
    if any(line[0] in b" \t" for line in lines):
        raise malformed("Folded header lines are not taken.")
    if len(lines) > most:
        raise malformed("The request has too many headers.")
    _check_lengths(lines)


def _check_lengths(lines: list[bytes]) -> None:
    """On the lines themselves: h11 makes one length of two that are equal."""
    named = [line.lower().split(b":", 1) for line in lines[1:] if b":" in line]
    framed = [(name.strip(), value.strip(b" \t")) for name, value in named if name.strip() in _LENGTHS]
    if len(framed) > 1 or any(name == b"content-length" and not _DIGITS.fullmatch(value) for name, value in framed):
        raise malformed("The length of the request is ambiguous.")


def _host(headers: Headers) -> str:
    found = values(headers, b"host")
    if len(found) > 1:
        raise malformed("The request has more than one Host.")
    return found[0].decode("latin-1").lower() if found else ""


def _framing(method: bytes, headers: Headers) -> Framing:
    if method in _ECHOES:
        raise malformed("This method is not passed on.")
    if values(headers, b"upgrade"):
        raise malformed("Other protocols than HTTP/1.1 are not passed on.")
    if not _connection(headers) <= _CONNECTION:
        raise malformed("Connection must not name other headers.")
    if values(headers, b"transfer-encoding"):
        return "chunked"
    return int(next(iter(values(headers, b"content-length")), b"0"))


def _framing_of_answer(headers: Headers) -> Framing:
    lengths, codings = values(headers, b"content-length"), values(headers, b"transfer-encoding")
    if lengths and codings:
        raise Failed("The length of the server's answer is ambiguous.")
    if codings:
        return "chunked"
    return int(lengths[0]) if lengths else "until_close"


def _connection(headers: Headers) -> set[bytes]:
    tokens = b",".join(values(headers, b"connection")).lower().split(b",")
    return {token.strip() for token in tokens} - {b""}


def _says_close(headers: Headers) -> bool:
    return b"close" in _connection(headers)
