"""How many, how long, how large: one sandbox does not stand in the way of another."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.gate.sites import Site, site
from tests.gate.support import HOST, OTHER, PASS, PUBLIC, TOKEN, WHOSE, World, closed, connect_head, read_answer, send
from vault.gate.doorkeeper import Whose
from vault.gate.limits import EGRESS_IDLE, Limits

MIRROR = "mirror.example.org"


@pytest.fixture
def hasty() -> Iterator[World]:
    """A gate whose patience is a second."""
    made = World(Limits(head=1.0, handshake=1.0, resolve=1.0, connect=1.0))
    with site(made.certificates.server(HOST)) as api:
        made.internet.servers[PUBLIC, 443] = api.port
        yield made
    made.close()


@pytest.fixture
def patient() -> Iterator[World]:
    """A gate that holds few connections, and lets fewer wait, but long."""
    made = World(Limits(waiting=4, connections=8))
    with site(made.certificates.server(HOST)) as api:
        made.internet.servers[PUBLIC, 443] = api.port
        yield made
    made.close()


def test_the_65th_tunnel_is_refused(world: World, api_site: Site):
    """E-197: EGRESS_TUNNELS of one Environment; another one is not touched, and one that ends makes room."""
    world.rows.passes["theirs"] = replace(PASS, whose=Whose("theirs", WHOSE.uid))
    tunnels = [world.tunnel() for _ in range(64)]
    assert world.gate.tunnels == 64
    answer = world.refused()
    assert (answer.status, json.loads(answer.body)["reason"]) == (403, "limit")
    world.tunnel(token="theirs")
    tunnels[0].close()
    world.until(lambda: world.gate.tunnels == 64)
    world.tunnel()
    assert world.rows.refusals() == [(HOST, 443, "limit", 1)]


def test_64_tunnels_at_once(world: World, api_site: Site):
    """E-197: all of them served at the same time, each with its header."""
    ready, answers = threading.Barrier(64), []

    def run() -> None:
        with world.secure() as made:
            ready.wait(30)
            answers.extend(send(made, "POST", f"/{number}", body=b"x" * 1000).status for number in range(5))

    threads = [threading.Thread(target=run) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 320
    assert [seen.all("Authorization") for seen in api_site.seen] == [["Bearer s3cret"]] * 320


def test_kept_plain_connections_count(world: World, mirror: Site):
    """E-197: a connection that waits for its next request is a tunnel like any other."""
    world.rows.passes[TOKEN] = replace(PASS)
    raw = f"GET http://{MIRROR}/ok HTTP/1.1\r\nHost: {MIRROR}\r\nProxy-Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    assert [world.ask(raw).status for _ in range(64)] == [200] * 64
    assert json.loads(world.ask(raw).body)["reason"] == "limit"


def test_idle_tunnels_are_closed(world: World, api_site: Site, mirror: Site):
    """E-197: EGRESS_IDLE without a byte in either direction; one that moved stays."""
    bound, passed, moving = world.secure(), world.tunnel(MIRROR, 80), world.secure()
    send(moving, "GET", "/ok")
    world.now += 299
    world.look()
    assert world.gate.tunnels == 3
    send(moving, "GET", "/ok")
    world.now += 2
    world.look()
    assert closed(bound)
    assert closed(passed)
    world.until(lambda: world.gate.tunnels == 1)
    assert send(moving, "GET", "/ok").status == 200
    assert world.rows.recorded == []


def test_a_client_that_does_not_take_its_answer_is_idle(world: World, api_site: Site):
    """E-197: what was sent and not taken keeps its tunnel, and goes with it when its time is over."""
    made = world.secure()
    made.sendall(f"GET /large HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
    made.recv(1)
    tunnel = world.call(lambda: next(iter(world.gate._tunnels._open)))
    world.until(lambda: not tunnel.wires[0]._flowing.is_set())
    world.now += 301
    world.look()
    world.until(lambda: world.gate.connections == 0)
    world.until(lambda: tunnel.wires[0].lost)


def test_a_revocation_closes_that_epoch_and_older_ones(world: World, api_site: Site, mirror: Site):
    """E-156: host.revoked; the Environment's newer tunnels and other Environments stay."""
    world.rows.passes["newer"] = replace(PASS, epoch=5)
    world.rows.passes["theirs"] = replace(PASS, whose=Whose("theirs", WHOSE.uid))
    old = [world.secure(), world.tunnel(MIRROR, 80)]
    kept = [world.tunnel(token="newer"), world.tunnel(token="theirs")]
    assert world.call(lambda: world.gate.revoke("demo", 3)) == 0
    assert world.call(lambda: world.gate.revoke("demo", 4)) == 2
    assert all(closed(one) for one in old)
    world.until(lambda: world.gate.tunnels == 2)
    for one in kept:
        with world.trust().wrap_socket(one, server_hostname=HOST) as made:
            assert send(made, "GET", "/ok").status == 200


def test_a_revocation_ends_a_request_in_its_middle(world: World, api_site: Site):
    """E-156: also one that waits for the server; the server's connection ends with it."""
    made = world.secure()
    made.sendall(f"GET /wait HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    world.until(lambda: api_site.seen)
    world.call(lambda: world.gate.revoke("demo", 4))
    assert closed(made)
    world.until(lambda: world.gate.connections == 0)


def test_open_tunnels_are_compared_with_the_rows(world: World, api_site: Site, mirror: Site):
    """E-111: a lost signal is made good: what the rows no longer hold is closed at the next look."""
    theirs = replace(PASS, whose=Whose("theirs", WHOSE.uid))
    world.rows.passes["theirs"] = theirs
    mine, other = world.tunnel(), world.tunnel(token="theirs")
    world.look()
    assert world.gate.tunnels == 2
    world.rows.away = True
    world.rows.moved[PASS] = None
    world.look()
    assert world.gate.tunnels == 2, "unknown is not gone"
    world.rows.away = False
    world.look()
    assert closed(mine)
    world.until(lambda: world.gate.tunnels == 1)
    assert other.fileno() >= 0


def test_the_watch_outlives_a_look_that_fails(caplog: pytest.LogCaptureFixture):
    """E-156: a bug in one comparison does not leave revoked tunnels open for ever; its text is not logged."""
    world = World(Limits(poll=0.01))
    try:
        compared: list[int] = []
        compare = world.rows.compare

        async def failing(passes):
            compared.append(len(passes))
            if len(compared) < 3:
                raise RuntimeError("quotes something")
            return await compare(passes)

        world.rows.compare = failing  # type: ignore[method-assign]
        world.internet.names[MIRROR] = [[PUBLIC]]
        with site() as mirror:
            world.internet.servers[PUBLIC, 80] = mirror.port
            made = world.tunnel(MIRROR, 80)
            world.rows.moved[PASS] = None
            watching = world.call(lambda: asyncio.ensure_future(world.gate.watch()))
            assert closed(made)
            world.call(watching.cancel)
        assert len(compared) >= 3
        assert "RuntimeError" in caplog.text
        assert "quotes" not in caplog.text
    finally:
        world.close()


def test_the_watch_outlives_a_look_that_hangs():
    """E-197: rows that never answer do not keep idle tunnels open."""
    world = World(Limits(poll=0.01, look=0.05))
    try:
        asked = threading.Event()

        async def hanging(passes):
            asked.set()
            await asyncio.Event().wait()

        world.rows.compare = hanging  # type: ignore[method-assign]
        world.internet.names[MIRROR] = [[PUBLIC]]
        with site() as mirror:
            world.internet.servers[PUBLIC, 80] = mirror.port
            made = world.tunnel(MIRROR, 80)
            watching = world.call(lambda: asyncio.ensure_future(world.gate.watch()))
            assert asked.wait(10)
            world.now += EGRESS_IDLE
            assert closed(made)
            world.call(watching.cancel)
    finally:
        world.close()


def test_a_lowered_ceiling_closes_what_is_outside(world: World, api_site: Site, other_site: Site):
    """E-304: the ceiling of now applies to running Environments, also to their open tunnels."""
    api, other = world.tunnel(HOST), world.tunnel(OTHER)
    lowered = replace(PASS, ceiling=(OTHER,))
    world.rows.moved[PASS] = lowered
    world.look()
    assert closed(api)
    world.until(lambda: world.gate.tunnels == 1)
    world.look()
    assert world.call(world.gate._tunnels.passes) == {lowered}
    with world.trust().wrap_socket(other, server_hostname=OTHER) as made:
        assert send(made, "GET", "/ok", host=OTHER).status == 200


def test_a_slow_first_head_is_not_waited_for(hasty: World):
    """E-197: nobody is answered, nobody else waits, and the place is free again."""
    made = hasty.connect()
    made.sendall(b"CONNECT api.example.org:443 HTTP/1.1\r\nHost")
    assert closed(made)
    silent = hasty.connect()
    assert closed(silent)
    hasty.until(lambda: hasty.gate.connections == 0)


def test_a_slow_hello_is_not_waited_for(hasty: World):
    """E-197: neither in a passed tunnel nor in one whose TLS ends here."""
    hasty.internet.names[OTHER] = [[PUBLIC]]
    for host in (HOST, OTHER):
        made = hasty.tunnel(host)
        made.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert closed(made)
    hasty.until(lambda: hasty.gate.tunnels == 0)


def test_a_slow_head_in_a_tunnel_is_refused(hasty: World):
    """E-197: from its first byte on it has so long; a tunnel without one is only idle."""
    with hasty.secure() as made:
        assert send(made, "GET", "/ok").status == 200
        made.sendall(b"GET / HTTP/1.1\r\n")
        answer = read_answer(made)
        assert answer.status == 403
        assert closed(made)
    assert hasty.rows.refusals() == [(HOST, 443, None, 1)]


def test_slow_names_and_servers_are_not_waited_for(hasty: World):
    """E-197: resolution and connecting have their time."""

    async def never(*arguments):
        await asyncio.sleep(60)

    before = hasty.internet.connect
    hasty.internet.names[OTHER] = [[PUBLIC]]
    object.__setattr__(hasty.gate._house.roads._network, "connect", never)
    assert hasty.refused(OTHER).status == 504
    object.__setattr__(hasty.gate._house.roads._network, "connect", before)
    object.__setattr__(hasty.gate._house.roads._network, "resolve", never)
    assert hasty.refused(OTHER).status == 502


def test_connections_are_bounded(patient: World):
    """E-197: in all; what is too many is closed unheard."""
    tunnels = [patient.tunnel() for _ in range(8)]
    assert patient.gate.connections == 8
    assert closed(patient.connect())
    tunnels.pop().close()
    patient.until(lambda: patient.gate.connections == 7)
    patient.tunnel()


def test_silent_connections_make_way(patient: World):
    """E-197: with one more the longest waiting is closed: who says nothing keeps nobody out."""
    silent = [patient.connect() for _ in range(4)]
    patient.until(lambda: patient.gate.connections == 4)
    patient.tunnel()
    assert closed(silent[0])
    assert patient.gate.tunnels == 1
    assert patient.gate.connections == 4


def test_refusals_are_thinned_and_flushed(world: World):
    """E-197: a flood is one event and, a minute later, another with the count."""
    for _ in range(30):
        world.refused("evil.com")
    assert world.rows.refusals() == [("evil.com", 443, "not_allowed", 1)]
    world.now += 61
    world.look()
    assert world.rows.refusals()[1:] == [("evil.com", 443, "not_allowed", 29)]
    for number in range(100):
        world.refused(f"h{number}.com")
    assert len(world.rows.recorded) == 60
    world.run(world.gate.stop())
    assert world.rows.refusals()[60:] == [("*", None, None, 42)]


def test_what_is_recorded_cannot_be_filled_by_a_name(world: World):
    """E-197: a host of a refusal is short and plain, whatever was asked for."""
    made = world.connect()
    made.sendall(connect_head("\x7f" + "x" * 5000 + ":443"))
    read_answer(made)
    world.refused("y" * 5000)
    assert all(len(one.host) <= 253 and one.host.isascii() for one in world.rows.recorded)


def test_stopping_closes_everything(world: World, api_site: Site):
    """E-197: no connection outlives the gate."""
    made = [world.secure(), world.tunnel(), world.connect()]
    world.until(lambda: world.gate.connections == 3)
    world.run(world.gate.stop())
    assert all(closed(one) for one in made)
    assert world.gate.connections == world.gate.tunnels == 0
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", world.port), timeout=5)
