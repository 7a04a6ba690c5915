"""Requests that two servers could read in two ways. Each is tried inside a bound tunnel, where a Secret is at stake."""

from __future__ import annotations

import json

import pytest

from tests.gate.sites import Site
from tests.gate.support import HOST, World, closed, connect_head, read_answer, send
from vault.gate.errors import Refuse
from vault.gate.heads import read_request
from vault.gate.limits import Limits

START = f"POST /ok HTTP/1.1\r\nHost: {HOST}\r\n"
CHUNKS = "5\r\nhello\r\n0\r\n\r\n"

HEADS = {
    "both lengths": START + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "both lengths, turned": START + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + CHUNKS,
    "two lengths": START + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "two equal lengths": START + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": START + "Content-Length: 5, 5\r\n\r\nhello",
    "a signed length": START + "Content-Length: +5\r\n\r\nhello",
    "a negative length": START + "Content-Length: -5\r\n\r\nhello",
    "a hexadecimal length": START + "Content-Length: 0x5\r\n\r\nhello",
    "a length with a space": START + "Content-Length: 5 5\r\n\r\nhello",
    "no length": START + "Content-Length:\r\n\r\nhello",
    "an endless length": START + "Content-Length: " + "9" * 40 + "\r\n\r\nhello",
    "two codings": START + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "chunked and more": START + "Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "gzip and chunked": START + "Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "identity": START + "Transfer-Encoding: identity\r\n\r\nhello",
    "xchunked": START + "Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "quoted chunked": START + 'Transfer-Encoding: "chunked"\r\n\r\n' + CHUNKS,
    "chunked with a vertical tab": START + "Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    "chunked with a parameter": START + "Transfer-Encoding: chunked;a=b\r\n\r\n" + CHUNKS,
    "a space before the colon": START + "Transfer-Encoding : chunked\r\n\r\n" + CHUNKS,
    "a tab before the colon": START + "Content-Length\t: 5\r\n\r\nhello",
    "a folded line": START + "Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "a folded first header": "GET / HTTP/1.1\r\n Host: x\r\nHost: " + HOST + "\r\n\r\n",
    "bare line feeds": START.replace("\r\n", "\n") + "\n",
    "one bare line feed": START + "X: y\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "a bare carriage return": START + "X: y\rTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "a NUL": START + "X: a\0b\r\n\r\n",
    "a blank line ahead": "\r\n" + START + "\r\n",
    "two hosts": f"GET / HTTP/1.1\r\nHost: {HOST}\r\nHost: evil.example.org\r\n\r\n",
    "the host twice": f"GET / HTTP/1.1\r\nHost: {HOST}\r\nhost: {HOST}\r\n\r\n",
    "no host": "GET / HTTP/1.1\r\nX: y\r\n\r\n",
    "HTTP/1.0": f"GET / HTTP/1.0\r\nHost: {HOST}\r\n\r\n",
    "HTTP/2.0": f"GET / HTTP/2.0\r\nHost: {HOST}\r\n\r\n",
    "HTTP/0.9": "GET /\r\n\r\n",
    "HTTP/1.10": f"GET / HTTP/1.10\r\nHost: {HOST}\r\n\r\n",
    "the preface of HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two spaces": f"GET  / HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "a space in the path": f"GET /a b HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "a tab in the path": f"GET /a\tb HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "a fragment": f"GET /a#b HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "a path without a slash": f"GET ok HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "an asterisk": f"OPTIONS * HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "absolute form": f"GET https://{HOST}/ok HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "CONNECT inside": f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "CONNECT inside, HTTP/1.0": f"CONNECT {HOST}:443 HTTP/1.0\r\nHost: {HOST}\r\n\r\n",
    "TRACE": f"TRACE / HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
    "an upgrade": START + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "a WebSocket": START + "Upgrade: websocket\r\n\r\n",
    "Connection names a header": START + "Connection: close, Content-Length\r\nContent-Length: 0\r\n\r\n",
    "Connection names the Secret's": START + "Connection: Authorization\r\n\r\n",
    "a line without a colon": START + "nonsense\r\n\r\n",
    "a header without a name": START + ": x\r\n\r\n",
    "a name that is no token": START + "a b: x\r\n\r\n",
    "too many headers": START + "".join(f"X-{number}: y\r\n" for number in range(300)) + "\r\n",
    "a large header": START + "X: " + "y" * (64 << 10) + "\r\n\r\n",
    "an endless line": "GET /" + "a" * (70 << 10),
}
BODIES = {
    "a chunk size with a sign": "+5\r\nhello\r\n0\r\n\r\n",
    "a chunk size with 0x": "0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk size that overflows": "1" + "0" * 20 + "\r\nhello\r\n0\r\n\r\n",
    "a chunk size with a space ahead": " 5\r\nhello\r\n0\r\n\r\n",
    "a chunk without its end": "5\r\nhelloX\r\n0\r\n\r\n",
    "a chunk that ends with a line feed": "5\r\nhello\n0\r\n\r\n",
    "a size that ends with a line feed": "5\nhello\r\n0\r\n\r\n",
    "no size": "\r\nhello\r\n0\r\n\r\n",
    "a negative size": "-1\r\nhello\r\n0\r\n\r\n",
    "an endless extension": "5;" + "a" * (1 << 20) + "\r\nhello\r\n0\r\n\r\n",
    "a trailer that is none": "0\r\nno trailer\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("raw", HEADS.values(), ids=HEADS.keys())
def test_an_ambiguous_head_is_refused(world: World, api_site: Site, raw: str):
    """E-197: 403, an event, the tunnel is over, and nothing of it reached the server."""
    with world.secure() as made:
        made.sendall(raw.encode("latin-1"))
        answer = read_answer(made)
        assert answer.status == 403
        assert set(json.loads(answer.body)) == {"status", "code", "message"}
        assert closed(made)
    assert api_site.seen == []
    assert [(one.host, one.port, one.reason) for one in world.rows.recorded] == [(HOST, 443, None)]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_an_ambiguous_body_is_refused(world: World, api_site: Site, body: str):
    """E-197: chunks are read here and framed anew; what cannot be read is not sent on."""
    with world.secure() as made:
        made.sendall(f"{START}Transfer-Encoding: chunked\r\n\r\n{body}".encode())
        assert read_answer(made).status == 403
        assert closed(made)
    assert api_site.seen == []
    assert [one.reason for one in world.rows.recorded] == [None]


def test_absolute_form_with_another_host_is_misdirected(world: World, api_site: Site):
    """E-197: a target that names another site counts as another Host."""
    with world.secure() as made:
        made.sendall(f"GET https://evil.example.org/ok HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert read_answer(made).status == 421
    assert api_site.seen == []
    assert [one.reason for one in world.rows.recorded] == ["host"]


def test_chunks_are_framed_anew(world: World, api_site: Site):
    """E-265: extensions and trailers end here: no header hides behind a body."""
    with world.secure() as made:
        body = "5;x=y\r\nhello\r\n00001\r\n!\r\n0;z\r\nAuthorization: mine\r\nX: y\r\n\r\n"
        made.sendall(f"{START}Transfer-Encoding: Chunked\r\nTrailer: X\r\n\r\n{body}".encode())
        assert read_answer(made).status == 200
        assert send(made, "GET", "/ok").status == 200
    first, second = api_site.seen
    assert first.body == b"hello!"
    assert first.all("Trailer") == []
    assert "mine" not in str(api_site.seen)
    assert second.all("Authorization") == ["Bearer s3cret"]


def test_pipelined_requests_are_served_one_by_one(world: World, api_site: Site):
    """E-265: each is read, checked and given its headers on its own; a bad one ends the rest."""
    good = f"POST /ok HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 3\r\nAuthorization: mine\r\n\r\nGET"
    bad = "GET /ok HTTP/1.1\r\nHost: evil.example.org\r\n\r\n"
    with world.secure() as made:
        made.sendall((good * 3 + bad + good).encode())
        received = b""
        while data := made.recv(65536):
            received += data
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.count(b"HTTP/1.1 421 ") == 1
    assert [seen.all("Authorization") for seen in api_site.seen] == [["Bearer s3cret"]] * 3
    assert [seen.body for seen in api_site.seen] == [b"GET"] * 3


def test_a_body_does_not_run_into_the_next_request(world: World, api_site: Site):
    """E-265: what lies beyond the length is the next request, and must be one."""
    with world.secure() as made:
        made.sendall(f"{START}Content-Length: 2\r\n\r\nhiGET / HTTP/1.1\r\nHost: evil.example.org\r\n\r\n".encode())
        assert read_answer(made).status == 200
    world.until(lambda: world.rows.refusals() == [(HOST, 443, "host", 1)])


@pytest.mark.parametrize("raw", [raw for name, raw in HEADS.items() if "absolute" not in name and "CONNECT" not in name
                                 and name not in {"a fragment", "a path without a slash", "an asterisk"}])  # fmt: skip
def test_the_proxy_itself_reads_as_strictly(world: World, raw: str):
    """E-197: the same rules where no tunnel is yet; nobody's Environment is named by such a head."""
    made = world.connect()
    made.sendall(raw.replace(" /", " http://mirror.example.org/", 1).encode("latin-1"))
    assert read_answer(made).status == 403
    assert world.internet.asked == []


def test_a_tunnel_request_has_no_body(world: World):
    """E-197: a body of a CONNECT is the beginning of something else."""
    head = connect_head(f"{HOST}:443").removesuffix(b"\r\n")
    assert world.ask(head + b"Content-Length: 5\r\n\r\nhello").status == 403
    assert world.rows.refusals() == [("?", None, None, 1)]


def test_a_refusal_quotes_nothing_of_the_request():
    """E-197: neither its message nor its cause holds what was sent."""
    raw = b"GET / HTTP/1.1\r\nHost: a.org\r\nAuthorization : s3cret\r\n\r\n"
    with pytest.raises(Refuse) as refused:
        read_request(raw, Limits())
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
