"""One end of a connection: order, limits, and what is kept of it."""

from __future__ import annotations

import asyncio

import pytest

from vault.gate.errors import Gone
from vault.gate.limits import CHUNK
from vault.gate.wire import Wire


class Transport:
    """What a wire stands on; nothing leaves it until the test says so."""

    def __init__(self):
        self.sent, self.reading, self.closed, self.eof = [], True, False, False

    def set_write_buffer_limits(self, high):
        self.high = high

    def write(self, data):
        self.sent.append(data)

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close

    def write_eof(self):
        self.eof = True


def run(work):
    """Run ``work(wire, transport)`` on a loop."""

    async def whole():
        wire, transport = Wire(lambda: 0.0), Transport()
        wire.connection_made(transport)
        async with asyncio.timeout(10):
            await work(wire, transport)

    asyncio.run(whole())


async def pending(task):
    """Let everything run that can; whether the task still waits."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


def test_what_is_put_back_comes_first():
    """E-197: nothing is lost or turned around between those who read."""

    async def work(wire, transport):
        wire.data_received(b"two")
        wire.unread(b"one")
        wire.data_received(b"three")
        wire.eof_received()
        assert [await wire.read() for _ in range(4)] == [b"one", b"two", b"three", b""]
        assert wire.ended()

    run(work)


def test_a_full_wire_stops_reading():
    """E-197: what is held of a sender has a bound."""

    async def work(wire, transport):
        wire.data_received(b"x" * CHUNK)
        assert not transport.reading
        assert not wire.quiet()
        await wire.read()
        assert transport.reading
        assert wire.quiet()

    run(work)


def test_every_writer_waits_and_every_writer_goes_on():
    """E-197: two that wait for the same peer are both woken."""

    async def work(wire, transport):
        wire.pause_writing()
        writers = [asyncio.create_task(wire.write(b"x")) for _ in range(2)]
        assert await pending(writers[0])
        assert await pending(writers[1])
        wire.resume_writing()
        await asyncio.gather(*writers)

    run(work)


def test_a_finish_lasts_until_the_peer_has_everything():
    """E-197: a connection that still holds bytes is not forgotten, so it still counts."""

    async def work(wire, transport):
        await wire.write(b"x")
        finishing = asyncio.create_task(wire.finish())
        assert await pending(finishing)
        assert transport.closed
        wire.connection_lost(None)
        await finishing

    run(work)


def test_a_lost_connection_is_gone():
    """E-197: for a writer, and for one who waits."""

    async def work(wire, transport):
        wire.pause_writing()
        writer = asyncio.create_task(wire.write(b"x"))
        assert await pending(writer)
        transport.close()
        wire.connection_lost(None)
        await writer
        assert await wire.read() == b""
        with pytest.raises(Gone):
            await wire.write(b"y")

    run(work)


def test_a_hang_up_is_heard_while_nobody_reads():
    """E-197: whoever waits for somebody else learns of it."""

    async def work(wire, transport):
        heard = []
        wire.on_hangup = lambda: heard.append(True)
        wire.data_received(b"x")
        assert heard == []
        wire.eof_received()
        assert heard == [True]
        assert not wire.ended()

    run(work)
