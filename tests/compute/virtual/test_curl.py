"""``curl`` and ``wget`` of a virtual workspace: what they send, what they say, how they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.compute.virtual.outside import ELSEWHERE, Out
from tests.compute.virtual.support import background, eventually
from tests.gate.sites import Certificates, Site
from tests.gate.support import HOST, OTHER

FORM = ("Content-Type", "application/x-www-form-urlencoded")


@pytest.mark.parametrize(
    ("options", "method", "path", "body", "headers"),
    [
        ("", "GET", "/ok", b"", [("Accept", "*/*"), ("User-Agent", "curl/8.0 (nylorun)")]),
        ("-A me -e there -b a=b -r 0-9", "GET", "/ok", b"",
         [("User-Agent", "me"), ("Referer", "there"), ("Cookie", "a=b"), ("Range", "bytes=0-9")]),
        ("-u me:pw", "GET", "/ok", b"", [("Authorization", "Basic bWU6cHc=")]),
        ("-X DELETE -H 'X-A: 1' -H'X-B:2' -H 'accept: text/x'", "DELETE", "/ok", b"",
         [("X-A", "1"), ("X-B", "2"), ("accept", "text/x")]),
        ("-d a=1 --data b=2", "POST", "/ok", b"a=1&b=2", [FORM]),
        ("-d @file", "POST", "/ok", b"onetwo", [FORM]),
        ("--data-binary @file", "POST", "/ok", b"one\ntwo\n", [FORM]),
        ("--data-raw @file", "POST", "/ok", b"@file", [FORM]),
        ("--data-urlencode 'q=a b&c' --data-urlencode '=x y'", "POST", "/ok", b"q=a+b%26c&x+y", [FORM]),
        ("--json '{\"a\":1}'", "POST", "/ok", b'{"a":1}',
         [("Content-Type", "application/json"), ("Accept", "application/json")]),
        ("-G -d a=1 -d b=2", "GET", "/ok?a=1&b=2", b"", []),
        ("-T file", "PUT", "/ok", b"one\ntwo\n", []),
        ("-XPUT -sSfd x -H 'Content-Type: text/plain'", "PUT", "/ok", b"x", [("Content-Type", "text/plain")]),
        ("-d x -H 'Content-Length: 99' -H 'Transfer-Encoding: chunked' -H 'Connection: keep-alive'", "POST", "/ok",
         b"x", [("Content-Length", "1"), ("Connection", "close")]),
        ("--compressed -N --http1.1 -g", "GET", "/ok", b"", []),
    ],
)  # fmt: skip
def test_what_curl_sends(
    out: Out, other: Site, options: str, method: str, path: str, body: bytes, headers: list[tuple[str, str]]
) -> None:
    out.workspace.write("file", b"one\ntwo\n")
    out.sh(f"curl -sS {options} https://{OTHER}/ok")
    seen = other.last
    assert (seen.method, seen.path, seen.body) == (method, path, body)
    for name, value in headers:
        assert seen.all(name) == [value]


def test_standard_input_is_sent_and_output_goes_on(out: Out, other: Site) -> None:
    assert out.sh(f"echo hello | curl -sS -d @- https://{OTHER}/ok | cut -d' ' -f1") == "5\n"
    assert other.last.body == b"hello"
    assert out.sh(
        f"x=$(curl -sS https://{OTHER}/chunked); echo [$x]; echo {OTHER} | xargs -I X curl -sS https://X/last"
    )
    assert out.sh(f"curl -sS https://{OTHER}/until_close") == "all there is"


def test_what_curl_says_of_an_answer(out: Out, other: Site) -> None:
    said = out.sh(f"curl -sS -I https://{OTHER}/ok")
    assert said.startswith("HTTP/1.1 200 OK\r\n")
    assert said.endswith("\r\n\r\n")
    assert other.last.method == "HEAD"
    assert out.sh(f"curl -s -o /dev/null -w '%{{http_code}} %{{method}}\\n' https://{OTHER}/ok") == "200 GET\n"
    assert "content-length" in out.sh(f"curl -sS -D - -o /dev/null https://{OTHER}/ok").lower()
    output = out.bash(f"curl -v -o /dev/null https://{OTHER}/ok")
    assert "verified" in str(output["stderr"])
    output = out.bash(f"curl -f -sS https://{OTHER}/early -o none; echo $?; cat none; curl -sf https://{OTHER}/early")
    assert str(output["stdout"]).split("\n")[0] == "22"
    assert "returned error: 413" in str(output["stderr"])
    assert output["exitCode"] == 22


def test_redirects_are_followed_when_asked_and_take_no_credentials_along(out: Out, bound: Site, other: Site) -> None:
    assert out.sh(f"curl -s -o /dev/null -w '%{{http_code}}' https://{HOST}/redirect") == "302"
    said = out.sh(
        f"curl -sSL -H 'Authorization: mine' -b c=d -H 'X-Mine: 1' -d x -w ' %{{num_redirects}} %{{url_effective}}'"
        f" https://{HOST}/redirect"
    )
    assert said.endswith(f" 1 https://{OTHER}/taken")
    taken = other.last
    assert (taken.method, taken.body, taken.all("X-Mine")) == ("GET", b"", ["1"])
    assert taken.all("Authorization") == taken.all("Cookie") == taken.all("Content-Type") == []


def test_help_names_every_option(out: Out) -> None:
    said = out.sh("curl --help")
    for option in ("-X/--request VALUE", "-L/--location", "--json VALUE", "--fail-with-body"):
        assert option in said


def test_a_redirect_that_makes_no_sense_is_an_error(out: Out, other: Site) -> None:
    for target, code in (("http://[", 3), ("ftp://x/", 1), ("https://other.example.com/", 56), ("/a b", 0)):
        handler: Any = other.server.RequestHandlerClass
        handler._there, handler._b = _to(target), _to("/ok")
        assert out.bash(f"curl -sSL https://{OTHER}/there")["exitCode"] == code
    assert other.last.path == "/a%20b"


def _to(target: str) -> Callable[..., None]:
    return lambda handler, *_: handler._send(302 if target != "/ok" else 200, b"", Location=target)


def test_redirects_end(out: Out) -> None:
    circle = out.serve(OTHER, ELSEWHERE)
    handler: Any = circle.server.RequestHandlerClass
    handler._taken = handler._redirect
    output = out.bash(f"curl -sSL https://{OTHER}/redirect; echo $?; curl -sSL --max-redirs 2 https://{OTHER}/redirect")
    assert (output["stdout"], output["exitCode"]) == ("47\n", 47)
    assert len(circle.seen) == 11 + 3


def test_plain_http_goes_without_a_secret(out: Out) -> None:
    """E-304: to port 80 of an allowed host, in absolute form."""
    plain = out.serve("mirror.example.org", ELSEWHERE, 80)
    assert out.sh("curl -sS mirror.example.org/ok && curl -sS -d ab http://mirror.example.org/ok").startswith("0 ")
    assert [(seen.method, seen.path, seen.all("Authorization")) for seen in plain.seen] == [
        ("GET", "/ok", []),
        ("POST", "/ok", []),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("", 2, "no URL specified"),
        ("-k https://x.example.org/", 2, "certificates are always verified"),
        ("--insecure https://x.example.org/", 2, "certificates are always verified"),
        ("--proxy p https://x.example.org/", 2, "the way out of a workspace is fixed"),
        ("--socks5 p https://x.example.org/", 2, "option --socks5: is unknown here"),
        ("-sZ https://x.example.org/", 2, "option -Z: is unknown here"),
        ("https://x.example.org/ -o", 2, "requires parameter"),
        ("-m soon https://x.example.org/", 2, "numerical"),
        ("-H nothing https://x.example.org/", 2, "no header"),
        ("$'http://a\\nb.example.org/'", 3, "Malformed"),
        ("https://[::1]/", 3, "name in ASCII"),
        ("https:///path", 3, "name in ASCII"),
        ("ftp://x.example.org/", 1, "not supported"),
        ("file:///etc/passwd", 1, "not supported"),
        ("-X $'GET / HTTP/1.1\\r\\nX: y' https://x.example.org/", 3, "method"),
        ("-H $'X: a\\r\\nY: b' https://x.example.org/", 3, "one line"),
        ("https://nowhere.example.org/", 6, "Could not resolve host: nowhere.example.org"),
        ("https://silent.example.org/", 7, "Failed to connect to silent.example.org"),
        ("https://stranger.example.org/", 60, "certificate"),
        ("https://plain.example.org/", 35, "TLS"),
        ("-O https://good.example.org/", 23, "no length"),
        ("-o no/such/folder https://good.example.org/ok", 23, "No such file"),
        ("-d @missing https://good.example.org/ok", 26, "does not exist"),
    ],
)
def test_exit_codes_are_those_of_curl(out: Out, arguments: str, code: int, words: str) -> None:
    out.serve("good.example.org", "192.0.78.1")
    out.serve("stranger.example.org", "192.0.78.2", certificates=Certificates())
    plain = out.serve("plain.example.org", "192.0.78.3", 80)
    out.world.internet.servers["192.0.78.3", 443] = plain.port
    out.world.internet.names["silent.example.org"] = [["192.0.78.4"]]
    output = out.bash(f"curl -sS {arguments}")
    assert (output["exitCode"], output["stdout"]) == (code, ""), output
    assert words in str(output["stderr"]), output


def test_a_body_that_is_cut_off_is_told(out: Out, other: Site) -> None:
    with background(lambda: out.bash(f"curl -sS -o f https://{OTHER}/wait")) as outcome:
        eventually(lambda: other.seen)
        other.drop()
    assert outcome[0]["exitCode"] in (52, 56)


def test_wget_saves_under_the_name_in_the_url(out: Out, other: Site) -> None:
    said = out.sh(
        f"wget -q https://{OTHER}/a/ok https://{OTHER}/a/ok; wget -q https://{OTHER}/; ls; "
        f"wget -qO- --header 'X-A: 1' https://{OTHER}/ok | cut -c1; wget -nv -O /dev/null -U me https://{OTHER}/last"
    )
    assert said == "index.html\nok\nok.1\n0\n"
    assert other.seen[-2].all("X-A") == ["1"]
    assert other.last.all("User-Agent") == ["me"]
    for arguments, code in ((f"https://{OTHER}/early", 8), ("https://example.com/", 4), ("-Z x", 2), ("", 2)):
        assert out.bash(f"wget {arguments}")["exitCode"] == code
    assert out.bash(f"wget --no-check-certificate https://{OTHER}/ok")["exitCode"] == 2
