"""Plain HTTP in absolute form: package mirrors, never with a Secret."""

from __future__ import annotations

import json
import socket

from tests.gate.sites import Site
from tests.gate.support import HOST, PUBLIC, TOKEN, World, closed, read_answer

MIRROR = "mirror.example.org"


def ask(made: socket.socket, url: str, *lines: str, host: str = MIRROR, method: str = "GET", token: str = TOKEN):
    """One request in absolute form and its answer."""
    text = [f"{method} {url} HTTP/1.1", f"Host: {host}", f"Proxy-Authorization: Bearer {token}", *lines]
    made.sendall("".join(f"{line}\r\n" for line in [*text, ""]).encode())
    return read_answer(made, method)


def test_a_mirror_is_reached(world: World, mirror: Site):
    """E-304: in origin form, without the token, with the client's own headers."""
    answer = ask(world.connect(), f"http://{MIRROR}/pool/a?b=c", "Authorization: mine", "Proxy-Connection: keep-alive")
    assert answer.status == 200
    assert mirror.last.path == "/pool/a?b=c"
    assert mirror.last.all("Host") == [MIRROR]
    assert mirror.last.all("Authorization") == ["mine"]
    assert TOKEN not in str(mirror.seen)
    assert world.gate.tunnels == 1
    assert world.rows.uses == []


def test_a_bound_host_gets_no_secret(world: World, mirror: Site):
    """E-304: plain requests never carry one."""
    world.internet.servers[PUBLIC, 80] = mirror.port
    assert ask(world.connect(), f"http://{HOST}/ok", host=HOST).status == 200
    assert "s3cret" not in str(mirror.seen)
    assert world.rows.uses == []


def test_a_connection_is_kept_for_the_next_request(world: World, mirror: Site):
    """E-304: both sides; each request is let in on its own token."""
    made = world.connect()
    for number in range(3):
        assert ask(made, f"http://{MIRROR}/{number}").status == 200
    assert mirror.connections == 1
    answer = ask(made, f"http://{MIRROR}/4", token="wrong")
    assert (answer.status, json.loads(answer.body)["reason"]) == (403, "token")
    assert closed(made)
    assert len(mirror.seen) == 3


def test_another_host_on_the_same_connection_is_another_server(world: World, mirror: Site, api_site: Site):
    """E-304: each target is checked and connected to for itself."""
    world.internet.servers[PUBLIC, 80] = mirror.port
    made = world.connect()
    assert ask(made, f"http://{MIRROR}/a").status == 200
    assert ask(made, f"http://{HOST}/b", host=HOST).status == 200
    assert world.internet.dialled == [("198.41.0.5", 80), (PUBLIC, 80)]
    answer = ask(made, "http://10.0.0.1/c", host="10.0.0.1")
    assert json.loads(answer.body)["reason"] == "address"
    assert world.rows.refusals() == [("10.0.0.1", 80, "address", 1)]


def test_a_host_that_is_not_the_urls(world: World, mirror: Site):
    """E-197: 421, and the connection is over."""
    made = world.connect()
    answer = ask(made, f"http://{MIRROR}/", host="other.example.org")
    assert (answer.status, json.loads(answer.body)["reason"]) == (421, "host")
    assert closed(made)
    assert mirror.seen == []


def test_a_name_that_leads_inside(world: World, mirror: Site):
    """E-197: plain requests are checked like tunnels, each time anew."""
    world.internet.names[MIRROR] = [["198.41.0.5"], ["127.0.0.1"]]
    made = world.connect()
    assert ask(made, f"http://{MIRROR}/a").status == 200
    assert json.loads(ask(made, f"http://{MIRROR}/b").body)["reason"] == "not_public"
    assert len(mirror.seen) == 1


def test_bodies_and_answers_of_every_kind(world: World, mirror: Site):
    """E-304: HEAD, chunks, an answer until the end, a server that closes."""
    made = world.connect()
    assert ask(made, f"http://{MIRROR}/ok", method="HEAD").body == b""
    assert ask(made, f"http://{MIRROR}/chunked").body == b"firstsecond"
    assert ask(made, f"http://{MIRROR}/ok", "Content-Length: 0", method="POST").status == 200
    assert ask(made, f"http://{MIRROR}/until_close").body == b"all there is"
    assert closed(made)


def test_other_forms_are_refused(world: World):
    """E-304: a path alone, another scheme, another port."""
    for url in ("/path", "https://mirror.example.org/", "http://mirror.example.org:8080/", "ftp://mirror.example.org/"):
        assert ask(world.connect(), url).status == 403
    assert world.internet.asked == []
