"""Where a request to the proxy wants to go: a host name and a port, or a refusal. Pure.

Only plain host names pass. An address is refused in every spelling that a resolver would take for one: dotted, short,
decimal, octal or hexadecimal, with or without a dot at its end, and every IPv6 form.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from vault.gate.doorkeeper import Pass, Reason
from vault.gate.errors import Refuse, malformed
from vault.hosts import HOST_MAX, exact_host

HTTPS, HTTP = 443, 80

_PORT = re.compile(r"[0-9]{1,5}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_IPV6 = re.compile(r"\[?[0-9a-f:.]*:[0-9a-f:.]*(%.*)?\]?")


@dataclass(frozen=True, slots=True)
class Target:
    """A host name, lower-cased, and a port."""

    host: str
    port: int


def tunnel_target(authority: str) -> Target:
    """Host and port of a ``CONNECT``; raises :class:`Refuse`."""
    host, colon, port = authority.rpartition(":")
    if not colon or not _PORT.fullmatch(port):
        raise malformed("CONNECT takes a host and a port.")
    return _target(host, int(port), (HTTPS, HTTP))


def plain_target(url: str) -> tuple[Target, str]:
    """Target and origin-form of a request in absolute form; raises :class:`Refuse`."""
    scheme, found, rest = url.partition("://")
    if not found or "#" in rest:
        raise malformed("The proxy takes CONNECT, or a request with an absolute http URL.")
    authority, path = _split(rest)
    host, colon, port = authority.rpartition(":")
    if not colon or "]" in port:
        host, port = authority, "443" if scheme.lower() == "https" else "80"
    if not _PORT.fullmatch(port):
        raise malformed("The port of the URL is no number.")
    target = _target(host, int(port), (HTTP,))
    if scheme.lower() != "http":
        raise malformed("Only http URLs are taken in absolute form; use CONNECT.")
    return target, path


def check_allowed(target: Target, admitted: Pass) -> None:
    """Refuse a host outside the Recipe's list or the Tenant's ceiling."""
    if not admitted.lets(target.host):
        raise _refused("This host is not allowed here.", "not_allowed", target.host, target.port)


def _split(rest: str) -> tuple[str, str]:
    end = next((index for index, character in enumerate(rest) if character in "/?"), len(rest))
    path = rest[end:]
    return rest[:end], path if path.startswith("/") else "/" + path


def _target(host: str, port: int, ports: tuple[int, ...]) -> Target:
    if is_address(host):
        raise _refused("Addresses are not allowed here: use a host name.", "address", host, port)
    try:
        name = exact_host(host)
    except ValueError:
        raise _refused("This is no host name.", "not_allowed", host, port) from None
    if port not in ports:
        raise _refused(f"Only port {' and '.join(map(str, ports))} is allowed here.", "port", name, port)
    return Target(name, port)


def is_address(host: str) -> bool:
    """Whether some resolver would read this text as an address instead of looking a name up."""
    text = host.lower().rstrip(".")
    if _IPV6.fullmatch(text) or _NUMBER.fullmatch(text.rpartition(".")[2]):
        return True
    try:
        socket.inet_aton(text)
    except OSError:
        return False
    return True


def _refused(message: str, reason: Reason, host: str, port: int) -> Refuse:
    shown = "".join(character if "!" <= character <= "~" else "?" for character in host[:HOST_MAX])
    return Refuse(message, reason, host=shown.lower(), port=port)
