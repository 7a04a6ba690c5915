"""The server name of a handshake that is not ours to end."""

import asyncio
import ssl

import pytest

from vault.gate.hello import HELLO_MAX, read_hello
from vault.gate.wire import Wire


def hello(name="api.example.org"):
    """A real client's first message."""
    context = ssl.create_default_context()
    context.check_hostname = False
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def read(*pieces, end=True):
    """What is read when these pieces arrive."""

    async def work():
        wire = Wire(lambda: 0.0)
        for piece in pieces:
            wire.data_received(piece)
        if end:
            wire.eof_received()
        async with asyncio.timeout(5):
            return await read_hello(wire)

    return asyncio.run(work())


def extended(raw, *extensions):
    """A ClientHello with these extensions alone, around the fields of a real one."""
    message = raw[9:]
    at = 34
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    body = b"".join(kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data for kind, data in extensions)
    message = message[:at] + len(body).to_bytes(2, "big") + body
    handshake = b"\1" + len(message).to_bytes(3, "big") + message
    return b"\x16\3\1" + len(handshake).to_bytes(2, "big") + handshake


def name_list(*names):
    entries = b"".join(bytes([kind]) + len(name).to_bytes(2, "big") + name for kind, name in names)
    return len(entries).to_bytes(2, "big") + entries


def test_the_name_of_a_real_client():
    """E-304: as a client sends it, in one piece, in single bytes, or in small records."""
    raw = hello("API.Example.org")
    assert read(raw) == (raw, "api.example.org")
    assert read(*(raw[at : at + 1] for at in range(len(raw)))) == (raw, "api.example.org")
    handshake = raw[5:]
    records = b"".join(
        b"\x16\3\1" + len(part).to_bytes(2, "big") + part
        for part in (handshake[at : at + 50] for at in range(0, len(handshake), 50))
    )
    assert read(records) == (records, "api.example.org")


def test_what_follows_stays_with_what_was_read():
    """E-304: bytes sent ahead reach the server as they came."""
    raw = hello()
    assert read(raw + b"more") == (raw + b"more", "api.example.org")


def test_no_name():
    """E-304: a hello without a server name, or with an address, has none to show."""
    assert read(hello(None))[1] is None


@pytest.mark.parametrize(
    "extensions",
    [
        [(0, name_list((0, b"a.org"))), (0, name_list((0, b"b.org")))],
        [(0, name_list((0, b"a.org"), (0, b"b.org")))],
        [(0, name_list((1, b"a.org")))],
        [(0, name_list((0, "ä.org".encode())))],
        [(0, b"")],
        [(0, b"\xff\xff\0")],
        [(0, b"\0\4\0\0\xffa")],
    ],
)
def test_names_that_could_be_read_in_two_ways_are_none(extensions):
    """E-304: two names, another kind of name, other letters, lengths that do not fit."""
    assert read(extended(hello(), (0, name_list((0, b"a.org")))))[1] == "a.org"
    assert read(extended(hello(), *extensions))[1] is None


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\x16\3\1\0\0", b"\x16\3\1\xff\xff" + b"\1" * 70000,
        b"\x16\2\1\0\5\1\0\0\1\0",
        b"\x16\3\1\0\5\2\0\0\1\0", b"\x16\3\1\0\5\1\0\0\1\0", b"\x16\3\1\0\4\1" + HELLO_MAX.to_bytes(3, "big"),
        b"\x17\3\3\0\5hello", b"\x16", b"",
    ],
)  # fmt: skip
def test_what_is_no_hello_ends_the_reading(raw):
    """E-304: another protocol, an empty or an endless message has no name."""
    assert read(raw)[1] is None


def test_a_broken_hello_is_not_waited_for():
    """E-304: what cannot become a hello is answered at once, without the connection's end."""
    assert read(b"SSH-2.0-x\r\n", end=False)[1] is None
    assert read(b"\x16\3\1\0\4\1\xff\xff\xff", end=False)[1] is None


def test_every_cut_and_every_flipped_byte_is_harmless():
    """E-304: whatever arrives, reading it ends with a name or without one."""
    raw = hello()
    for at in range(len(raw)):
        read(raw[:at])
        read(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :])
