"""Which addresses are public. Pure; there is no switch that lets another one through.

An address counts as public only when it is unicast, globally routed and nobody's special purpose: the lists below are
those of IANA's special-purpose registries, written out because what Python calls global differs by version. IPv4 inside
IPv6 counts as the IPv4 address where a gateway really unpacks it (mapped, NAT64); the other embeddings (6to4, Teredo,
compatible, local NAT64) are refused whatever they hold.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NOT_PUBLIC_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers; also metadata of one cloud
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # metadata of one cloud, in the middle of public space
        "169.254.0.0/16",  # link-local, metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT relays
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_UNICAST_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3ffe::/16",  # the former test network
        "3fff::/20",  # documentation
    )
)
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether a connection to this address leaves for the public internet. What is no address is not public."""
    if "%" in address:
        return False
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return _public_v4(parsed) if isinstance(parsed, IPv4Address) else _public_v6(parsed)


def _public_v4(address: IPv4Address) -> bool:
    return address.is_global and not any(address in network for network in _NOT_PUBLIC_V4)


def _public_v6(address: IPv6Address) -> bool:
    if address in _MAPPED or address in _NAT64:
        return _public_v4(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _UNICAST_V6 and not any(address in network for network in _NOT_PUBLIC_V6)
