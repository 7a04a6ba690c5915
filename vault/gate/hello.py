"""The server name a TLS client asks for, read from its first message without ending TLS (RFC 8446 §4.1.2, RFC 6066 §3).

Nothing here decides: a message that does not parse has no server name. What an encrypted ClientHello hides inside stays
hidden; its outer name is what counts.
"""

from __future__ import annotations

from vault.gate.wire import Wire

HELLO_MAX = 32 << 10
UNRECOGNIZED_NAME = bytes((21, 3, 3, 0, 2, 2, 112))
"""The fatal alert of RFC 6066 §3, in the clear, for a handshake that is not begun."""

_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_RECORD_HEAD, _RECORD_MAX = 5, 16 << 10


class _Broken(Exception):
    """Not a ClientHello."""


async def read_hello(wire: Wire) -> tuple[bytes, str | None]:
    """Read until the ClientHello is complete or cannot be one: all bytes read, and the server name if there is one."""
    raw = bytearray()
    while True:
        try:
            message = _message(raw)
            if message is not None:
                return bytes(raw), _server_name(message)
        except _Broken:
            return bytes(raw), None
        data = await wire.read()
        if not data:
            return bytes(raw), None
        raw += data


def _message(raw: bytearray) -> bytes | None:
    """The handshake message out of its records; ``None`` while bytes are missing."""
    message, position = bytearray(), 0
    while len(raw) >= position + _RECORD_HEAD:
        kind, major = raw[position], raw[position + 1]
        length = int.from_bytes(raw[position + 3 : position + 5], "big")
        if kind != _HANDSHAKE or major != 3 or not 0 < length <= _RECORD_MAX:
            raise _Broken
        message += raw[position + _RECORD_HEAD : position + _RECORD_HEAD + length]
        position += _RECORD_HEAD + length
        wanted = _wanted(message)
        if wanted is not None and len(message) >= wanted:
            return bytes(message[:wanted])
    if len(raw) and raw[0] != _HANDSHAKE:
        raise _Broken
    return None


def _wanted(message: bytearray) -> int | None:
    if len(message) < 4:
        return None
    wanted = 4 + int.from_bytes(message[1:4], "big")
    if message[0] != _CLIENT_HELLO or wanted > HELLO_MAX:
        raise _Broken
    return wanted


class _Cursor:
    """Takes vectors off the front of a message."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise _Broken
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))


def _server_name(message: bytes) -> str | None:
    cursor = _Cursor(message[4:])
    cursor.take(2 + 32)
    for size in (1, 2, 1):  # session id, cipher suites, compression
        cursor.vector(size)
    extensions = _Cursor(cursor.vector(2))
    names = []
    while extensions.left:
        kind, body = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            names.append(_host_name(body))
    return names[0] if len(names) == 1 else None


def _host_name(body: bytes) -> str:
    entries = _Cursor(_Cursor(body).vector(2))
    kind, name = entries.number(1), entries.vector(2)
    if kind != _HOST_NAME or entries.left:
        raise _Broken
    try:
        return name.decode("ascii").lower()
    except UnicodeDecodeError:
        raise _Broken from None
