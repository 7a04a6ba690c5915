"""Who is let in, what is refused before a tunnel, and tunnels that pass through."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from dataclasses import replace
from uuid import UUID

import pytest

from tests.gate.sites import Site
from tests.gate.support import HOST, OTHER, PASS, PUBLIC, TOKEN, WHOSE, World, closed, connect_head, read_answer, send
from vault.gate.doorkeeper import Stale, Whose


def reason(answer):
    """The reason of a refusal, whose shape is checked."""
    members = json.loads(answer.body)
    assert set(members) <= {"status", "code", "message", "reason"}
    assert (members["status"], members["code"]) == ("rejected", "request_rejected")
    return members.get("reason")


def test_an_allowed_host_passes_untouched(world: World, other_site: Site):
    """E-304: the client's TLS is with the real server itself, and nothing is added or taken away."""
    with world.secure(OTHER) as made:
        assert made.getpeercert(binary_form=True) == other_site.certificate
        assert send(made, "GET", "/ok", "Authorization: mine", host="front.example.net").status == 200
    assert other_site.last.all("Authorization") == ["mine"]
    assert other_site.last.all("Host") == ["front.example.net"]
    assert world.internet.dialled == [("198.41.0.4", 443)]
    assert world.rows.refusals() == []
    assert world.rows.uses == []


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("api.example.com", 443, "not_allowed"),
        ("example.org", 443, "not_allowed"),
        (HOST, 22, "port"),
        (HOST, 8443, "port"),
        ("127.0.0.1", 443, "address"),
        ("[::1]", 443, "address"),
        ("2130706433", 443, "address"),
        (PUBLIC, 443, "address"),
        ("xn--80ak6aa92e.com", 443, "not_allowed"),
    ],
)
def test_refusals_of_a_target(world: World, api_site: Site, host: str, port: int, expected: str):
    """E-197: 403 with the reason of the table, an event, and nothing was asked or connected to."""
    answer = world.refused(host, port)
    assert (answer.status, reason(answer)) == (403, expected)
    assert world.rows.refusals() == [(host, port, expected, 1)] or host == "[::1]"
    assert world.internet.asked == world.internet.dialled == []


def test_no_network_refuses_everything(world: World, api_site: Site):
    """E-197: without network in the Recipe there is no way out."""
    world.change(allowed=None)
    assert reason(world.refused()) == "not_allowed"


def test_the_ceiling_of_now_applies(world: World, api_site: Site):
    """E-304: what the Recipe names passes only while the Tenant's ceiling holds it."""
    world.change(ceiling=("*.example.org",))
    assert world.get().status == 200
    world.change(ceiling=("other.example.org",))
    assert reason(world.refused()) == "not_allowed"


@pytest.mark.parametrize("token", [None, "", "wrong", "x" * 5000])
def test_a_wrong_token_is_refused_and_names_no_environment(world: World, api_site: Site, token: str | None):
    """E-111: no tunnel, no event of anybody, and no word about the target."""
    answer = world.refused("127.0.0.1", token=token)
    assert (answer.status, reason(answer)) == (403, "token")
    assert world.rows.recorded == []


def test_a_stale_token_is_recorded(world: World):
    """E-111: one of ours that is over is an event of its Environment."""
    world.rows.passes["old"] = Stale(WHOSE)
    assert reason(world.refused(token="old")) == "token"
    assert world.rows.refusals() == [(HOST, 443, "token", 1)]
    assert world.rows.recorded[0].whose == WHOSE


@pytest.mark.parametrize(
    "shown", ["Basic {}", "bearer", "{}", "Bearer {}\r\nProxy-Authorization: Bearer {}"]
)  # fmt: skip
def test_the_token_is_shown_once_as_a_bearer(world: World, shown: str):
    """E-111: two tokens, or another scheme, are none."""
    line = shown.format(TOKEN, TOKEN)
    answer = world.ask(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\nProxy-Authorization: {line}\r\n\r\n".encode())
    assert reason(answer) == "token"


def test_old_clients_connect_with_http_1_0(world: World, other_site: Site):
    """E-304: widespread clients open tunnels so, without a Host."""
    made = world.connect()
    made.sendall(f"CONNECT {OTHER}:443 HTTP/1.0\r\nProxy-Authorization: Bearer {TOKEN}\r\n\r\n".encode())
    assert made.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["169.254.169.254"], ["10.1.2.3"], ["::1"], ["fe80::1"], ["::ffff:127.0.0.1"], ["64:ff9b::7f00:1"],
     [PUBLIC, "127.0.0.1"], ["127.0.0.1", PUBLIC], [PUBLIC, "fd00::1"], ["fe80::1%lo"]],
)  # fmt: skip
@pytest.mark.parametrize("host", [HOST, OTHER])
def test_a_name_that_leads_inside_is_refused(world: World, host: str, addresses: list[str]):
    """E-197: one address that is not public refuses the name, whatever the others are; nothing is connected to."""
    world.internet.names[host] = [addresses]
    for address in addresses:
        world.internet.servers[address, 443] = 1
    answer = world.get(host=HOST) if host == HOST else world.refused(host)
    assert (answer.status, reason(answer)) == (403, "not_public")
    assert not any(address in answer.body.decode() for address in addresses)
    assert world.internet.dialled == []
    assert world.rows.refusals() == [(host, 443, "not_public", 1)]


def test_the_address_that_was_checked_is_the_one_connected_to(world: World, other_site: Site):
    """E-197: no rebinding: a second look at the name happens at the next tunnel only, and is checked again."""
    world.internet.names[OTHER] = [["198.41.0.4"], ["127.0.0.1"]]
    world.internet.servers["127.0.0.1", 443] = other_site.port
    assert world.get(host=OTHER).status == 200
    assert world.internet.asked == [OTHER]
    assert reason(world.refused(OTHER)) == "not_public"
    assert world.internet.dialled == [("198.41.0.4", 443)]


def test_the_next_address_is_tried(world: World, other_site: Site):
    """E-197: in their order, each checked; one that does not accept is passed over."""
    world.internet.names[OTHER] = [["198.41.0.9", "198.41.0.4"]]
    assert world.get(host=OTHER).status == 200
    assert world.internet.dialled == [("198.41.0.9", 443), ("198.41.0.4", 443)]


def test_failures_outside_are_no_refusals(world: World):
    """E-197: a name without address, a host that does not accept: 502 and 504, nothing recorded, no address named."""
    assert world.refused("missing.example.org").status == 502
    world.internet.names[OTHER] = [["198.41.0.4"]]
    answer = world.refused(OTHER)
    assert answer.status == 504
    assert b"198.41" not in answer.body
    world.rows.away = True
    assert world.refused(OTHER).status == 503
    assert world.rows.recorded == []


@pytest.mark.parametrize("name", ["evil.example.org", HOST, None])
def test_another_server_name_does_not_pass(world: World, other_site: Site, name: str | None):
    """E-304: the server name of the handshake is the tunnel's host, also for a client that does not verify."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
        context.wrap_socket(world.tunnel(OTHER), server_hostname=name)
    world.until(lambda: world.rows.refusals() == [(OTHER, 443, "host", 1)])
    assert other_site.seen == []


def test_what_is_no_handshake_does_not_pass(world: World, other_site: Site):
    """E-304: another protocol on port 443 shows no server name."""
    made = world.tunnel(OTHER)
    made.sendall(b"SSH-2.0-client\r\n")
    assert closed(made)
    world.until(lambda: world.rows.refusals() == [(OTHER, 443, "host", 1)])


def test_port_80_passes_as_it_is(world: World, mirror: Site):
    """E-304: a tunnel to port 80 carries what it carries, without a Secret."""
    made = world.tunnel("mirror.example.org", 80)
    assert send(made, "GET", "/ok", host="mirror.example.org").status == 200
    assert mirror.last.all("Authorization") == []


def test_a_bound_host_on_port_80_gets_no_secret(world: World, mirror: Site):
    """E-304: a Secret goes over verified TLS or not at all."""
    world.internet.servers[PUBLIC, 80] = mirror.port
    made = world.tunnel(HOST, 80)
    assert send(made, "GET", "/ok").status == 200
    assert "s3cret" not in str(mirror.seen)
    assert world.rows.uses == []


def test_a_half_closed_tunnel_still_answers(world: World, mirror: Site):
    """E-304: the end of one direction is passed on and is not the end of the other."""
    made = world.tunnel("mirror.example.org", 80)
    made.sendall(b"GET /until_close HTTP/1.1\r\nHost: mirror.example.org\r\n\r\n")
    made.shutdown(socket.SHUT_WR)
    assert read_answer(made).body == b"all there is"


def test_what_is_sent_ahead_of_the_tunnel_arrives(world: World, mirror: Site):
    """E-304: a client need not wait for the gate's word."""
    made = world.connect()
    head = connect_head("mirror.example.org:80")
    made.sendall(head + b"GET /ok HTTP/1.1\r\nHost: mirror.example.org\r\n\r\n")
    received = b""
    while b" OK\r\n" not in received:
        received += made.recv(4096)
    assert received.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_environments_do_not_meet(world: World, api_site: Site):
    """E-111: each token opens what its own row has."""
    theirs = Whose("theirs", UUID(int=2))
    world.rows.passes["theirs"] = replace(PASS, whose=theirs, bound=frozenset(), allowed=(HOST,))
    made = world.trust().wrap_socket(world.tunnel(token="theirs"), server_hostname=HOST)
    assert send(made, "GET", "/ok").status == 200
    assert api_site.last.all("Authorization") == []
    assert world.rows.uses == []
    assert reason(world.refused(OTHER, token="theirs")) == "not_allowed"
    assert [one.whose for one in world.rows.recorded] == [theirs]


def test_a_token_revoked_while_it_is_looked_at_opens_nothing(world: World, api_site: Site):
    """E-111: what was read before the revocation does not outlive it."""
    begun, may_end = threading.Event(), threading.Event()
    world.rows.admitting = [begun, may_end]
    answers = []
    asking = threading.Thread(target=lambda: answers.append(world.refused()))
    asking.start()
    assert begun.wait(10)
    assert world.call(lambda: world.gate.revoke("demo", 4)) == 0
    may_end.set()
    asking.join()
    assert reason(answers[0]) == "token"
