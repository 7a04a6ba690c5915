"""Which headers a request gets, and where it goes."""

import base64

import pytest

from tests.gate.support import HOST, bearer, header, headers
from vault.gate.doorkeeper import CannotOpen
from vault.gate.heads import read_request
from vault.gate.inject import Place, plan, rules_of, written
from vault.gate.limits import Limits


def planned(opened, target="/x", *lines, subject=None):
    """The plan of one request."""
    text = "".join(f"{line}\r\n" for line in (f"GET {target} HTTP/1.1", f"Host: {HOST}", *lines))
    return plan(read_request(f"{text}\r\n".encode(), Limits()), HOST, rules_of(opened, subject))


def named(made, name):
    return [value.decode() for key, value in made.headers if key.decode().lower() == name.lower()]


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("{value}", "v"),
        ("Bearer {value}", "Bearer v"),
        ("Basic {base64:user:{value}}", "Basic " + base64.b64encode(b"user:v").decode()),
        ("{base64:fixed} {value} end", base64.b64encode(b"fixed").decode() + " v end"),
        ("a {base64:{value}:} z", "a " + base64.b64encode(b"v:").decode() + " z"),
    ],
)
def test_formats(format, expected):
    """E-265: {value} once, at most one {base64:...} group around it or beside it."""
    assert written(format, "v") == expected


def test_a_value_is_never_read_as_a_format():
    """E-265: braces of a value stay braces."""
    assert written("{base64:a}{value}", "{base64:{value}}") == "YQ=={base64:{value}}"
    assert written("{base64:{value}}", "{value}") == base64.b64encode(b"{value}").decode()


def test_each_type_sets_its_headers():
    """E-265: bearer, environment_secret (with and without inject) and headers."""
    assert named(planned([bearer("b")]), "authorization") == ["Bearer b"]
    assert named(planned([header("h")]), "authorization") == ["Bearer h"]
    inject = {"header": "X-Key", "format": "k={value}"}
    made = planned([header("h", inject=inject), headers({"X-A": "1", "X-B": "2"})], "/x", "x-key: mine", "X-B: mine")
    assert (named(made, "x-key"), named(made, "x-a"), named(made, "x-b")) == (["k=h"], ["1"], ["2"])


def test_the_identity_header_carries_the_subject():
    """E-265: left out when there is none; never what the sandbox sent."""
    secret = bearer("b", identity={"header": "X-User"})
    assert named(planned([secret], "/x", "X-User: root", subject="ann"), "x-user") == ["ann"]
    assert named(planned([secret], "/x", "X-User: root"), "x-user") == []


def test_a_path_rule_removes_everywhere_and_sets_below():
    """E-265: off its path the bound name is taken out and nothing is set."""
    secret = bearer("b", url=f"https://{HOST}/v1")
    assert named(planned([secret], "/v1/x?y=/../z"), "authorization") == ["Bearer b"]
    assert named(planned([secret], "/v1x", "Authorization: mine"), "authorization") == []
    assert named(planned([secret], "/x?/v1", "Authorization: mine"), "authorization") == []


def test_two_secrets_of_one_host_on_two_paths():
    """E-265: each on its own path, under the same header."""
    secrets = [bearer("a", url=f"https://{HOST}/a"), bearer("b", url=f"https://{HOST}/b/")]
    assert named(planned(secrets, "/a"), "authorization") == ["Bearer a"]
    assert named(planned(secrets, "/b/c"), "authorization") == ["Bearer b"]
    assert named(planned(secrets, "/c"), "authorization") == []


def test_a_via_takes_the_place_of_origin_and_base_path():
    """E-265: the rest of the path and the query go along; Host is the gateway's."""
    secret = bearer("b", url=f"https://{HOST}/v1", via="http://127.0.0.1:9000/base/")
    made = planned([secret], "/v1/./a%20b/../c?d=e")
    assert made.place == Place("127.0.0.1", 9000, tls=False, base="/base", via="http://127.0.0.1:9000/base/")
    assert (made.target, named(made, "host")) == ("/base/c?d=e", ["127.0.0.1:9000"])
    assert named(made, "authorization") == ["Bearer b"]
    assert planned([secret], "/v1").target == "/base"
    off = planned([secret], "/v2")
    assert (off.place, off.target, named(off, "host")) == (Place(HOST), "/v2", [HOST])


def test_what_is_not_bound_to_a_gateway_does_not_go_there():
    """E-265: a request that is sent to a via carries only the headers of that via."""
    secrets = [
        bearer("b", url=f"https://{HOST}/v1", via="https://gateway.example.net:8443"),
        headers({"X-Origin": "o"}),
        header("h", inject={"header": "X-Host", "format": "{value}"}),
    ]
    there = planned(secrets, "/v1/x", "X-Origin: mine")
    assert there.place.authority == "gateway.example.net:8443"
    assert (named(there, "authorization"), named(there, "x-origin"), named(there, "x-host")) == (["Bearer b"], [], [])
    here = planned(secrets, "/v2/x")
    assert (named(here, "authorization"), named(here, "x-origin"), named(here, "x-host")) == ([], ["o"], ["h"])


def test_headers_of_the_connection_end_here():
    """E-265: what speaks of one connection is not passed on; what only sounds alike is."""
    ending = ["Proxy-Authorization: t", "Proxy-X: 1", "Keep-Alive: 1", "TE: trailers", "Trailer: X"]
    lines = [*ending, "Connection: close, TE", "Proxyish: kept", "X-TE: kept"]
    made = planned([bearer()], "/x", *lines)
    assert [name.decode() for name, _ in made.headers] == ["Host", "Proxyish", "X-TE", "Authorization", "Connection"]
    assert named(made, "connection") == ["close"]


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\0b", "a\x7fb", "a\x1bb"])
def test_a_value_that_no_header_can_hold_opens_nothing(value):
    """E-265: refused with no trace of the value, not cut or escaped."""
    with pytest.raises(CannotOpen) as refused:
        rules_of([bearer(value)], None)
    assert value not in repr(refused.value)
    with pytest.raises(CannotOpen):
        rules_of([bearer("fine", identity={"header": "X-User"})], value)


def test_nothing_that_holds_a_value_shows_it():
    """E-265: neither an opened Secret, a rule nor a plan."""
    opened = [bearer("s3cret"), headers({"X-A": "s3cret"})]
    assert "s3cret" not in repr(opened)
    assert "s3cret" not in repr(rules_of(opened, None))
    assert "s3cret" not in repr(planned(opened))
