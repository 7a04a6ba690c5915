"""Which addresses are public, and which texts are addresses at all."""

from uuid import UUID

import pytest

from vault.gate.addresses import is_public
from vault.gate.doorkeeper import Pass, Whose
from vault.gate.errors import Refuse
from vault.gate.targets import Target, check_allowed, plain_target, tunnel_target


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "93.184.216.34", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.255.255", "100.128.0.1",
     "223.255.255.1", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8"],
)  # fmt: skip
def test_public_addresses(address):
    """E-197: what is globally routed and unicast is public, also behind NAT64."""
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1",
        "127.255.255.255", "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1",
        "192.0.0.192", "192.0.2.1", "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.0.1", "192.175.48.1",
        "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
        "255.255.255.255",
        "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
        "::ffff:0:8.8.8.8", "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::8.8.8.8",
        "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1", "2001:10::1", "2001:20::1",
        "2001:db8::1", "2002:7f00:1::", "2002:808:808::", "2620:4f:8000::1", "3ffe::1", "3fff::1", "4000::1", "5f00::1",
        "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "2606:4700::1111%1", "fec0::1", "ff02::1",
        "", "localhost", "8.8.8", "0x08.8.8.8", "8.8.8.8 ", "08.8.8.8",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address):
    """E-197: private, loopback, link-local, multicast, reserved and documentation ranges, also as IPv4 inside IPv6."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "93.184.216.34", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0x7f.1",
        "017700000001", "0177.0.0.1", "0177.1", "0", "127.0.0.1.", "127.1.", "127.0.0.0x1", "[::1]", "::1", "[::]",
        "[::ffff:127.0.0.1]", "[fe80::1%25eth0]", "[2606:4700::1111]", "1.2.3.4.5", "256.256.256.256", "0X7F.1",
        "a.1", "example.0x7f",
    ],
)  # fmt: skip
def test_literal_addresses_are_refused_in_every_spelling(host):
    """E-197: a name that some resolver reads as an address is one."""
    with pytest.raises(Refuse) as refused:
        tunnel_target(f"{host}:443")
    assert (refused.value.reason, refused.value.port) == ("address", 443)


@pytest.mark.parametrize(
    "host",
    ["localhost", "api.example.org.", "münchen.example.org", "api_.example.org", "user@api.example.org",
     "a..example.org", "user:pass@api.example.org", "*.example.org", "-a.example.org", "a" * 64 + ".example.org",
     ".".join(["a" * 60] * 5), "api.example.org/x", "api%2eexample.org", "api.example.org\\x", "", " api.example.org"],
)  # fmt: skip
def test_what_is_no_host_name_is_refused(host):
    """E-197: no dot at the end, other letters, user information, or more than a name may hold."""
    with pytest.raises(Refuse) as refused:
        tunnel_target(f"{host}:443")
    assert refused.value.reason == "not_allowed"
    assert len(refused.value.host) <= 253
    assert refused.value.host.isascii()


@pytest.mark.parametrize("port", ["22", "8443", "0", "65535", "99999", "444"])
def test_other_ports_are_refused(port):
    """E-197: CONNECT to 443 and 80 only."""
    with pytest.raises(Refuse) as refused:
        tunnel_target(f"api.example.org:{port}")
    assert (refused.value.reason, refused.value.host, refused.value.port) == ("port", "api.example.org", int(port))


@pytest.mark.parametrize(
    "authority",
    ["api.example.org", "api.example.org:", "api.example.org:https", ":", "x:-1", "x:1e2", "x:\u0664\u0664\u0663",
     "api.example.org:443/x"],
)  # fmt: skip
def test_a_tunnel_names_host_and_port(authority):
    """E-197: anything else is no target."""
    with pytest.raises(Refuse):
        tunnel_target(authority)


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://Mirror.example.org", "mirror.example.org", "/"),
        ("http://mirror.example.org:80/a/b?c=d", "mirror.example.org", "/a/b?c=d"),
        ("HTTP://mirror.example.org?c=d", "mirror.example.org", "/?c=d"),
        ("http://mirror.example.org/http://x", "mirror.example.org", "/http://x"),
    ],
)
def test_absolute_urls(url, host, path):
    """E-304: plain requests go to port 80 of a host name."""
    assert plain_target(url) == (Target(host, 80), path)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://mirror.example.org:8080/", "port"),
        ("http://mirror.example.org:443/", "port"),
        ("https://mirror.example.org/", "port"),
        ("https://mirror.example.org:80/", None),
        ("ftp://mirror.example.org/", None),
        ("/path", None),
        ("mirror.example.org", None),
        ("http:mirror.example.org", None),
        ("http://mirror.example.org:x/", None),
        ("http://mirror.example.org/#f", None),
        ("http://user@mirror.example.org/", "not_allowed"),
        ("http://user:80@mirror.example.org/", None),
        ("http://127.0.0.1/", "address"),
        ("http://[::1]/", "address"),
        ("http://[::1]:80/", "address"),
        ("http://2130706433/", "address"),
        ("http://mirror.example.org\\@other.example.org/", "not_allowed"),
        ("http:///x", "not_allowed"),
    ],
)
def test_other_urls_are_refused(url, reason):
    """E-304: no address, other port, user information or scheme."""
    with pytest.raises(Refuse) as refused:
        plain_target(url)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("allowed", "ceiling", "host", "lets"),
    [
        (("api.example.org",), None, "api.example.org", True),
        (("*.example.org",), None, "api.example.org", True),
        (("*.example.org",), None, "example.org", False),
        (("*.example.org",), None, "evilexample.org", False),
        (("other.org",), None, "api.example.org", False),
        ((), None, "api.example.org", False),
        (None, None, "api.example.org", False),
        (None, ("*.example.org",), "api.example.org", False),
        (("*.example.org",), ("*.example.org",), "api.example.org", True),
        (("*.example.org",), ("other.org",), "api.example.org", False),
        (("*.example.org",), (), "api.example.org", False),
    ],
)
def test_the_list_and_the_ceiling(allowed, ceiling, host, lets):
    """E-304, E-50: the Recipe's list and the Tenant's ceiling of now; no network means nothing."""
    admitted = Pass(Whose("demo", UUID(int=1)), 1, allowed, ceiling)
    assert admitted.lets(host) is lets
    if not lets:
        with pytest.raises(Refuse) as refused:
            check_allowed(Target(host, 443), admitted)
        assert refused.value.reason == "not_allowed"
