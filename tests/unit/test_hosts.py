"""Host names and URLs: the grammar, and which entry covers which host."""

import pytest

from vault.hosts import covered, covers, exact_host, host_pattern
from vault.urls import below, origin_url, via_url

LONG_LABEL = "a" * 63
LONG_HOST = ".".join([LONG_LABEL] * 3 + ["a" * 61])


@pytest.mark.parametrize(
    "text",
    ["a.b", "API.Example.ORG", "1.a", "a-b.c-d", "0.0.0.x", f"{LONG_LABEL}.org", LONG_HOST, "xn--mnchen-3ya.de"],
)
def test_hosts_are_lower_cased(text):
    """E-50: a host has two labels or more, and is compared lower-cased."""
    assert exact_host(text) == text.lower()
    assert host_pattern("*." + text[: 253 - 2]) == "*." + text[: 253 - 2].lower()


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "localhost", ".a.b", "a..b", "a.b.", "-a.b", "a-.b", "a.b-", "a_b.c", "a b.c", "a.b\n", " a.b", "*",
        "*.", "*.a", "**.a.b", "a.*.b", "*a.b.c", "http://a.b", "a.b:443", "a.b/", "a.b/c", "1.2.3.4", "127.0.0.1",
        "12.34", "[::1]", "::1", "ä.example.org", "\u212a.example.org", f"{LONG_LABEL}a.org", LONG_HOST + "a", "a@b.c",
        "*.1.2", "0x7f.0.0.1", "0x7F.1", "0x.0x", "127.0x1",
    ],
)  # fmt: skip
def test_what_is_no_host_is_refused(text):
    """E-50: no scheme, port, path, address, single label or foreign letter."""
    with pytest.raises(ValueError, match="must be"):
        host_pattern(text)


def test_a_pattern_is_no_exact_host():
    """E-50: exact names only where a value is bound."""
    assert host_pattern("*.Example.org") == "*.example.org"
    with pytest.raises(ValueError, match="exact"):
        exact_host("*.example.org")


@pytest.mark.parametrize(
    ("entry", "host", "expected"),
    [
        ("a.x.org", "a.x.org", True),
        ("*.x.org", "a.x.org", True),
        ("*.x.org", "b.a.x.org", True),
        ("*.x.org", "*.x.org", True),
        ("*.x.org", "*.a.x.org", True),
        ("*.x.org", "x.org", False),
        ("*.x.org", "evilx.org", False),
        ("*.x.org", "*.evilx.org", False),
        ("*.a.x.org", "*.x.org", False),
        ("*.a.x.org", "a.x.org", False),
        ("x.org", "a.x.org", False),
        ("a.x.org", "*.x.org", False),
    ],
)
def test_an_entry_covers_what_lies_below_it(entry, host, expected):
    """E-50: ``*.x`` covers hosts and patterns below x, not x itself."""
    assert covers(entry, host) is expected


def test_an_empty_list_covers_nothing():
    """E-50: an empty allow list means no way out, not every way out."""
    assert not covered("a.x.org", [])
    assert covered("a.x.org", ["b.x.org", "*.x.org"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://API.Example.org", "https://api.example.org"),
        ("HTTPS://api.example.org/V1/a%20b", "https://api.example.org/V1/a%20b"),
        ("https://api.example.org/v1/", "https://api.example.org/v1/"),
        ("https://api.example.org/", "https://api.example.org/"),
        ("https://api.example.org/...", "https://api.example.org/..."),
    ],
)
def test_urls_keep_their_path_and_lower_their_host(text, expected):
    """E-50: the host of a URL follows the grammar of hosts."""
    assert origin_url(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "api.example.org", "http://api.example.org", "ftp://api.example.org", "https://localhost/x",
        "https://1.2.3.4/", "https://*.example.org/", "https://api.example.org:443/", "https://a@api.example.org/",
        "https://a:b@api.example.org/", "https://api.example.org/?q=1", "https://api.example.org/#f",
        "https://api.example.org?", "https://api.example.org/a/../b", "https://api.example.org/./b",
        "https://api.example.org//b", "https://api.example.org/%2e%2e/b", "https://api.example.org/a%2Fb",
        "https://api.example.org/%zz", "https://api.example.org/%", "https://api.example.org/a b",
        "https://api.example.org/a\\b", "https://api.example.org/%00", "https://api.example.org/\n",
        "https://api.example.org/ä", " https://api.example.org/", "https:///x", "https://",
    ],
)  # fmt: skip
def test_what_is_no_url_of_an_origin_is_refused(text):
    """E-50: https, a host and a plain path, nothing else."""
    with pytest.raises(ValueError, match="must"):
        origin_url(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://proxy.example.org:8443/x", "https://proxy.example.org:8443/x"),
        ("http://LOCALHOST:8080", "http://localhost:8080"),
        ("http://127.0.0.1:1/a", "http://127.0.0.1:1/a"),
        ("http://[::1]:65535", "http://[::1]:65535"),
    ],
)
def test_via_may_name_a_port_and_this_machine(text, expected):
    """E-50: a via is https, or http to this machine."""
    assert via_url(text) == expected


@pytest.mark.parametrize(
    "text",
    ["http://proxy.example.org", "https://localhost", "http://10.0.0.1", "http://localhost:0", "http://localhost:65536",
     "http://localhost:", "http://[::2]"],
)  # fmt: skip
def test_other_vias_are_refused(text):
    """E-50: plain http leaves this machine nowhere."""
    with pytest.raises(ValueError, match="must"):
        via_url(text)


@pytest.mark.parametrize(
    ("url", "base", "expected"),
    [
        ("https://a.org/v1", "https://a.org/v1", True),
        ("https://a.org/v1/", "https://a.org/v1", True),
        ("https://a.org/v1/x", "https://a.org/v1/", True),
        ("https://a.org/v1", "https://a.org", True),
        ("https://a.org/v10", "https://a.org/v1", False),
        ("https://a.org", "https://a.org/v1", False),
        ("https://b.org/v1/x", "https://a.org/v1", False),
    ],
)
def test_below_means_whole_segments(url, base, expected):
    """E-50: ``/v10`` does not lie below ``/v1``."""
    assert below(url, base) is expected
