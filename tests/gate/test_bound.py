"""Hosts with a bound Secret: which header arrives, and where it never arrives."""

from __future__ import annotations

import json
import socket
import ssl

import pytest

from tests.gate.sites import Site, site
from tests.gate.support import (
    HOST,
    OTHER,
    PUBLIC,
    TOKEN,
    World,
    bearer,
    closed,
    header,
    headers,
    read_answer,
    send,
)


def test_the_header_arrives_and_the_sandbox_never_sees_it(world: World, api_site: Site):
    """E-265: a hidden Secret is set on the wire; nothing the sandbox gets back shows it."""
    answer = world.get("/ok")
    assert answer.status == 200
    assert api_site.last.all("Authorization") == ["Bearer s3cret"]
    assert "s3cret" not in str(answer)
    assert world.rows.refusals() == []


def test_a_header_of_the_sandbox_is_replaced(world: World, api_site: Site):
    """E-265: every header of a bound name is taken out, whatever its case and number; another name stays."""
    world.get("/ok", "authorization: Bearer mine", "AUTHORIZATION: x", "X_Authorization: kept", "Other: kept")
    assert api_site.last.all("Authorization") == ["Bearer s3cret"]
    assert api_site.last.all("X_Authorization") == ["kept"]
    assert api_site.last.all("Other") == ["kept"]


def test_the_egress_token_goes_no_further(world: World, api_site: Site):
    """E-265: neither the token of the tunnel nor one inside it reaches the server."""
    world.get("/ok", "Proxy-Authorization: Bearer inside", "Proxy-Connection: keep-alive")
    assert TOKEN not in str(api_site.seen)
    assert "inside" not in str(api_site.seen)


def test_all_types_and_the_identity(world: World, api_site: Site):
    """E-265: several Secrets of one host, each in its own header."""
    world.change(subject="ann@example.org")
    world.rows.secrets = [
        bearer("b", identity={"header": "X-User"}),
        header("h", inject={"header": "X-Basic", "format": "Basic {base64:me:{value}}"}),
        headers({"X-One": "1", "X-Two": "2"}),
    ]
    world.get("/ok", "X-User: root", "X-One: mine")
    seen = [api_site.last.all(name) for name in ("Authorization", "X-User", "X-Basic", "X-One", "X-Two")]
    assert seen == [["Bearer b"], ["ann@example.org"], ["Basic bWU6aA=="], ["1"], ["2"]]


def test_a_redirect_to_another_host_does_not_carry(world: World, api_site: Site, other_site: Site):
    """E-265: the gate follows nothing; the tunnel to the other host passes without the Secret."""
    answer = world.get("/redirect")
    assert (answer.status, answer.header("Location")) == (302, f"https://{OTHER}/taken")
    assert world.get("/taken", host=OTHER).status == 200
    assert other_site.last.all("Authorization") == []
    assert "s3cret" not in str(other_site.seen)


@pytest.mark.parametrize(
    ("path", "carries"),
    [("/v1", True), ("/v1/x", True), ("/v1x", False), ("/v1/../x", False), ("/v1/%2e%2e/x", False), ("/x", False),
     ("/v1/..%2fx", False), ("/v1/a%2Fb", True)],
)  # fmt: skip
def test_the_secret_stays_below_its_path(world: World, api_site: Site, path: str, carries: bool):
    """E-265: the path of the binding, normalised; the request itself is sent on as it was written."""
    world.rows.secrets = [bearer(url=f"https://{HOST}/v1")]
    world.get(path, "Authorization: mine")
    assert api_site.last.path == path
    assert api_site.last.all("Authorization") == (["Bearer s3cret"] if carries else [])


def test_one_tunnel_opens_once_and_serves_many(world: World, api_site: Site):
    """E-265: keep-alive on both sides; the use is asked for once, with the host."""
    with world.secure() as made:
        for number in range(5):
            assert send(made, "POST", f"/ok?{number}", body=b"x" * number).status == 200
    assert [seen.path for seen in api_site.seen] == [f"/ok?{number}" for number in range(5)]
    assert api_site.connections == 1
    assert [host for _, host in world.rows.uses] == [HOST]


def test_a_rotated_secret_reaches_the_next_tunnel(world: World, api_site: Site):
    """E-265: nothing restarts; an open tunnel keeps what it opened."""
    with world.secure() as made:
        send(made, "GET", "/ok")
        world.rows.secrets = [bearer("fresh")]
        send(made, "GET", "/ok")
    world.get("/ok")
    assert [seen.all("Authorization") for seen in api_site.seen] == [["Bearer s3cret"]] * 2 + [["Bearer fresh"]]


def test_answers_pass_as_they_are(world: World, api_site: Site):
    """E-265: HEAD, 204, 304, chunks with trailers, a body until the end; the connection serves on where it may."""
    with world.secure() as made:
        assert send(made, "HEAD", "/ok").body == b""
        assert send(made, "GET", "/empty").status == 204
        unchanged = send(made, "GET", "/unchanged")
        assert (unchanged.status, unchanged.header("Content-Length"), unchanged.body) == (304, "1000", b"")
        chunked = send(made, "GET", "/chunked")
        assert (chunked.header("Transfer-Encoding"), chunked.body) == ("chunked", b"firstsecond")
        assert send(made, "GET", "/ok").status == 200
        assert send(made, "GET", "/last").body == b"bye"
        assert closed(made)
    assert api_site.connections == 1
    assert world.get("/until_close").body == b"all there is"


def test_100_continue(world: World, api_site: Site):
    """E-265: the server's word to go on reaches the client before the body is sent."""
    with world.secure() as made:
        made.sendall(f"POST /ok HTTP/1.1\r\nHost: {HOST}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n".encode())
        assert made.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        made.sendall(b"hello")
        assert read_answer(made).status == 200
    assert api_site.last.body == b"hello"


def test_a_server_that_is_not_the_host_gets_nothing(world: World):
    """E-265: the real server is verified: neither a foreign authority nor another name passes, and no header left."""
    with site(world.certificates.server(OTHER)) as wrong_name, site(World.stranger(HOST)) as stranger:
        for one in (wrong_name, stranger):
            world.internet.servers[PUBLIC, 443] = one.port
            answer = world.get("/ok")
            assert answer.status == 502
            assert "s3cret" not in str(answer)
            assert PUBLIC not in str(answer)
        assert wrong_name.seen == stranger.seen == []


def test_a_secret_that_cannot_be_read(world: World, api_site: Site):
    """E-197: refused before a tunnel is there, and nothing was connected to."""
    world.rows.unreadable = True
    answer = world.refused()
    assert (answer.status, json.loads(answer.body)["reason"]) == (403, "secret")
    world.rows.unreadable = False
    world.rows.secrets = [bearer("two\nlines")]
    assert b"lines" not in world.refused().body
    assert world.internet.dialled == []
    world.look()
    assert world.rows.refusals() == [(HOST, 443, "secret", 1)]


@pytest.mark.parametrize("name", ["evil.example.org", OTHER])
def test_another_server_name_is_misdirected(world: World, api_site: Site, name: str):
    """E-197: 421 and the tunnel is closed, also for a client that does not verify."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for shown in (name, None):
        with context.wrap_socket(world.tunnel(), server_hostname=shown) as made:
            answer = send(made, "GET", "/ok")
            assert (answer.status, json.loads(answer.body)["reason"]) == (421, "host")
            assert closed(made)
    assert api_site.seen == []
    assert world.rows.refusals() == [(HOST, 443, "host", 1)]


def test_what_is_no_handshake_is_misdirected(world: World, api_site: Site):
    """E-197: plain HTTP inside the tunnel of a bound host gets nowhere."""
    made = world.tunnel()
    made.sendall(b"GET / HTTP/1.1\r\nHost: api.example.org\r\n\r\n")
    assert closed(made)
    assert world.rows.refusals() == [(HOST, 443, "host", 1)]
    assert world.internet.dialled == []


@pytest.mark.parametrize(
    "host", ["evil.example.org", OTHER, f"{HOST}:8443", f"{HOST}.", f"x{HOST}", "", f"{HOST}@{OTHER}"]
)
def test_another_host_in_a_request_is_misdirected(world: World, api_site: Site, host: str):
    """E-197: a Secret never reaches another site behind the same front: 421, and the tunnel is over."""
    with world.secure() as made:
        assert send(made, "GET", "/ok").status == 200
        answer = send(made, "GET", "/ok", host=host)
        assert (answer.status, json.loads(answer.body)["reason"]) == (421, "host")
        assert closed(made)
    assert len(api_site.seen) == 1
    assert world.rows.refusals() == [(HOST, 443, "host", 1)]


def test_the_host_with_its_port_and_in_capitals_is_the_host(world: World, api_site: Site):
    """E-197: two spellings of the tunnel's host; the server sees one."""
    with world.secure() as made:
        assert send(made, "GET", "/ok", host="API.Example.org:443").status == 200
    assert api_site.last.all("Host") == [HOST]


def test_a_hang_up_ends_a_request_that_waits(world: World, api_site: Site):
    """E-197: a sandbox that is gone leaves no tunnel behind while the server thinks."""
    made = world.secure()
    made.sendall(f"GET /wait HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    world.until(lambda: api_site.seen)
    assert world.gate.tunnels == 1
    made.shutdown(socket.SHUT_RDWR)
    world.until(lambda: world.gate.connections == 0)


def test_a_server_that_closes_between_requests_is_connected_to_again(world: World, api_site: Site):
    """E-265: a kept connection that ended is no error of the next request."""
    with world.secure() as made:
        assert send(made, "GET", "/ok").status == 200
        api_site.drop()
        world.until(lambda: world.call(lambda: [one for one in world.gate._tunnels._open if one.wires[-1]._eof]))
        assert send(made, "GET", "/ok").status == 200
    assert api_site.connections == 2
    assert api_site.last.all("Authorization") == ["Bearer s3cret"]


def test_an_answer_that_nobody_asked_for_answers_nothing(world: World, api_site: Site):
    """E-265: what a server sends beyond its answer is not taken for the next one."""
    with world.secure() as made:
        assert send(made, "GET", "/unasked").body == b"good"
        assert send(made, "GET", "/chunked").body == b"firstsecond"
    assert api_site.connections == 2
