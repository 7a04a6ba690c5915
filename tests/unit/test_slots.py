"""Slots: bindings in one normal form, names, and which of them clash."""

import pytest

from manifests.schema import parse
from vault.bindings import Bound, binding_of, clash, clash_with, hosts_of, name_problem, variable_problem


def slot(**members):
    """A Slot of a body after parsing."""
    body, problems = parse({"secrets": {"A": members}})
    assert problems == []
    return body["secrets"]["A"]


def paths(**members):
    """Where the problems of one Slot are, below it."""
    return [problem["path"].removeprefix("/secrets/A") for problem in parse({"secrets": {"A": members}})[1]]


def secret(*hosts, **more):
    return Bound(
        more.pop("name", "S"), "environment_secret", {"type": "environment_secret", "allowedHosts": hosts, **more}
    )


def bearer(url, name="B", **more):
    return Bound(name, "bearer", {"type": "bearer", "url": url, **more})


def headers(url, *names, name="H", **more):
    return Bound(name, "headers", {"type": "headers", "url": url, **more}, names)


def test_sending_a_default_and_leaving_it_out_give_the_same_slot():
    """E-48: an ``inject`` as its default and ``required: false`` are left out; hosts are one list."""
    short = slot(type="environment_secret", allowedHosts=["a.org", "b.org"])
    long = slot(
        type="environment_secret",
        allowedHosts=["B.org", "a.org", "b.org"],
        inject={"header": "Authorization", "format": "Bearer {value}"},
        required=False,
    )
    assert short == long == {"type": "environment_secret", "allowedHosts": ["a.org", "b.org"]}


def test_another_inject_and_required_stay():
    """E-48: what is no default is part of the Slot; only what binds is part of the binding."""
    full = slot(
        type="environment_secret",
        allowedHosts=["a.org"],
        inject={"header": "X-Key", "format": "{value}"},
        required=True,
        description="d",
    )
    assert full["required"] is True
    assert binding_of(full) == {
        "type": "environment_secret",
        "allowedHosts": ["a.org"],
        "inject": {"header": "X-Key", "format": "{value}"},
    }


@pytest.mark.parametrize(
    "text", ["{value}", "Bearer {value}", "Basic {base64:user:{value}}", "{base64:x}{value}", "x" * 193 + "{value}"]
)
def test_formats_that_hold_the_value_once(text):
    """E-48: one value, at most one base64 group, which may hold it."""
    assert slot(type="environment_secret", allowedHosts=["a.org"], inject={"header": "X", "format": text})


@pytest.mark.parametrize(
    "text",
    ["", "Bearer", "{value}{value}", "{base64:{value}", "{base64:a}{base64:b}{value}", "{value}\r", "{value}\n",
     "x" * 194 + "{value}", "{base64:{x}{value}}"],
)  # fmt: skip
def test_other_formats_are_refused(text):
    """E-48: no value, two values, an open group or a line break."""
    inject = {"header": "X", "format": text}
    assert paths(type="environment_secret", allowedHosts=["a.org"], inject=inject) == ["/inject/format"]


@pytest.mark.parametrize(
    "text",
    ["", "a b", "a:b", "ä", "Host", "host", "Content-Length", "Transfer-Encoding", "CONNECTION", "Proxy-Authorization",
     "proxy-x", "x\r\n"],
)  # fmt: skip
def test_headers_of_the_connection_are_refused(text):
    """E-48: a header name is a token and none of the connection's own."""
    inject = {"header": text, "format": "{value}"}
    assert paths(type="environment_secret", allowedHosts=["a.org"], inject=inject) == ["/inject/header"]
    assert paths(type="headers", url="https://a.org", identity={"header": text}) == ["/identity/header"]


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"type": "environment_secret"}, "/allowedHosts"),
        ({"type": "environment_secret", "allowedHosts": []}, "/allowedHosts"),
        ({"type": "environment_secret", "allowedHosts": [f"h{n}.org" for n in range(21)]}, "/allowedHosts"),
        ({"type": "environment_secret", "allowedHosts": ["*.a.org"]}, "/allowedHosts/0"),
        ({"type": "environment_secret", "allowedHosts": ["1.2.3.4"]}, "/allowedHosts/0"),
        ({"type": "environment_secret", "allowedHosts": ["a.org"], "inject": None}, "/inject"),
        ({"type": "environment_secret", "allowedHosts": ["a.org"], "inject": {"header": "X"}}, "/inject/format"),
        ({"type": "environment_secret", "allowedHosts": ["a.org"], "url": "https://a.org"}, "/url"),
        ({"type": "environment_variable", "allowedHosts": ["a.org"]}, "/allowedHosts"),
        ({"type": "bearer"}, "/url"),
        ({"type": "bearer", "url": "http://a.org"}, "/url"),
        ({"type": "bearer", "url": "https://a.org/" + "x" * 499}, "/url"),
        ({"type": "bearer", "url": "https://a.org", "via": "http://b.org"}, "/via"),
        ({"type": "bearer", "url": "https://a.org", "identity": {"header": "authorization"}}, "/identity/header"),
        ({"type": "headers", "url": "https://a.org", "headers": {"X": "secret"}}, "/headers"),
        ({"type": "model"}, ""),
        ({"type": None}, ""),
        ({"type": ["bearer"]}, ""),
    ],
)
def test_a_slot_of_another_shape_is_refused(members, path):
    """E-48: each type has its members and no others."""
    assert path in paths(**members)


def test_the_bounds_of_a_slot_are_inside():
    """E-48: 20 hosts and a URL of 512 characters are taken."""
    assert slot(type="environment_secret", allowedHosts=[f"h{n}.org" for n in range(20)])
    assert slot(
        type="bearer", url="https://a.org/" + "x" * 498, via="http://localhost:1", identity={"header": "X-User"}
    )


@pytest.mark.parametrize(
    "name",
    ["NYLORUN_X", "NYLORUN_", "PATH", "HOME", "USER", "SHELL", "PWD", "IFS", "ENV", "BASH_ENV", "LD_PRELOAD",
     "LD_LIBRARY_PATH", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY",
     "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
     "GIT_SSL_CAINFO", "A.B", "A-B", "1A", "", "A" * 129],
)  # fmt: skip
def test_a_variable_cannot_have_a_reserved_name(name):
    """E-48: what decides over a shell or over trust cannot be set."""
    assert variable_problem(name) is not None


@pytest.mark.parametrize("name", ["A", "_", "a1", "Path", "NYLORUN", "MY_PATH", "A" * 128])
def test_other_variables_are_fine(name):
    """E-48: only the listed names are reserved."""
    assert variable_problem(name) is None


def test_hidden_secrets_have_wider_names():
    """E-48: dots and dashes are for names that become no variable."""
    assert name_problem("API.key-1", "bearer") is None
    assert name_problem("PATH", "bearer") is None
    assert name_problem("API.key-1", "environment_variable") is not None
    assert name_problem("1", "headers") is not None


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (secret("a.org", "b.org"), secret("b.org", inject={"header": "X", "format": "{value}"}), True),
        (secret("a.org"), secret("b.org"), False),
        (secret("a.org"), bearer("https://a.org/v1"), True),
        (secret("a.org", inject={"header": "AUTHORIZATION", "format": "{value}"}), bearer("https://a.org"), True),
        (secret("a.org", inject={"header": "X-Key", "format": "{value}"}), bearer("https://a.org"), False),
        (bearer("https://a.org/v1"), bearer("https://a.org/v1/x"), True),
        (bearer("https://a.org/v1"), bearer("https://a.org/v1"), True),
        (bearer("https://a.org/v1"), bearer("https://a.org/v10"), False),
        (bearer("https://a.org/v1"), bearer("https://b.org/v1"), False),
        (bearer("https://a.org"), headers("https://a.org", "X-A"), False),
        (bearer("https://a.org"), headers("https://a.org/v1", "authorization"), True),
        (headers("https://a.org/a", "X-A"), headers("https://a.org/b", "X-A"), False),
        (headers("https://a.org/a", "X-A"), headers("https://a.org/a/b", "x-a"), True),
        (headers("https://a.org"), headers("https://a.org"), False),
        (bearer("https://a.org", identity={"header": "X-User"}), headers("https://a.org", "x-user"), True),
        (secret("a.org"), Bound("V", "environment_variable", {"type": "environment_variable"}), False),
    ],
)
def test_two_secrets_clash_when_they_set_one_header_on_one_request(one, other, expected):
    """E-48: the same host, the same header ignoring case, and paths that meet."""
    assert clash(one, other) is expected
    assert clash(other, one) is expected


def test_the_name_told_is_the_first_of_those_that_clash():
    """E-48: a Secret never clashes with itself."""
    others = [bearer("https://a.org", name=name) for name in ("c", "b", "B")]
    assert clash_with(bearer("https://a.org", name="b"), others) == "B"
    assert clash_with(bearer("https://b.org", name="x"), others) is None
    assert clash_with(others[0], [others[0]]) is None


def test_the_hosts_a_binding_touches():
    """E-50: those of the list, or the host of the URL; a variable touches none."""
    assert hosts_of(secret("a.org", "b.org").binding) == ["a.org", "b.org"]
    assert hosts_of(bearer("https://a.org/v1").binding) == ["a.org"]
    assert hosts_of({"type": "environment_variable"}) == []
