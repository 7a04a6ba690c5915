"""The URLs a Secret is bound to, and the ones its requests may be sent to instead. Pure.

An origin URL is ``https``, a host of :mod:`vault.hosts` without wildcard, and a path; no query, fragment, user info or
port. A ``via`` may also name a port, and be ``http`` to this machine. Scheme and host are lower-cased, the path stays
as it is; it holds no empty, ``.`` or ``..`` segment, encoded or not, so that "at or below" has one meaning. Every
function raises ``ValueError`` with a few words for people.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from vault.hosts import exact_host

_URL = re.compile(r"(https?)://(\[::1\]|[^/:?#@\[\]\\]+)(?::([0-9]{1,5}))?((?:/[^?#\s\\]*)?)", re.IGNORECASE)
_SEGMENT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORT_MAX = 65_535
URL_MAX = 512


def origin_url(text: str) -> str:
    """A URL whose requests a Secret is set on."""
    scheme, host, port, path = _parts(text)
    if scheme != "https":
        raise ValueError("must be an https URL")
    if port is not None:
        raise ValueError("must not name a port")
    return f"https://{exact_host(host)}{path}"


def via_url(text: str) -> str:
    """A URL that requests may be sent to instead."""
    scheme, host, port, path = _parts(text)
    if scheme == "https":
        host = exact_host(host)
    elif host not in _LOOPBACK:
        raise ValueError("must be an https URL, or http to localhost, 127.0.0.1 or [::1]")
    return f"{scheme}://{host}{'' if port is None else f':{port}'}{path}"


def host_and_path(url: str) -> tuple[str, str]:
    """Host and path of a URL that passed :func:`origin_url`; the path without a slash at its end."""
    host, slash, path = url.removeprefix("https://").partition("/")
    return host, (slash + path).rstrip("/")


def below(url: str, base: str) -> bool:
    """Whether ``url`` is ``base`` or lies below it, on the same host."""
    host, path = host_and_path(url)
    base_host, base_path = host_and_path(base)
    return host == base_host and (path == base_path or path.startswith(base_path + "/"))


def _parts(text: str) -> tuple[str, str, int | None, str]:
    match = _URL.fullmatch(text)
    if match is None or not text.isascii():
        raise ValueError("must be a URL without query, fragment and user info")
    scheme, host, port, path = match[1].lower(), match[2].lower(), match[3], match[4]
    if port is not None and not 1 <= int(port) <= _PORT_MAX:
        raise ValueError(f"must name a port from 1 to {_PORT_MAX}")
    if not _plain(path):
        raise ValueError("must have a path without empty, . or .. parts")
    return scheme, host, None if port is None else int(port), path


def _plain(path: str) -> bool:
    return all(_plain_segment(segment) for segment in path.removesuffix("/").split("/")[1:])


def _plain_segment(segment: str) -> bool:
    decoded = unquote(segment)
    return (
        _SEGMENT.fullmatch(segment) is not None
        and decoded not in {"", ".", ".."}
        and not any(character in decoded for character in "/\\\0")
    )
