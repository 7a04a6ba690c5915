"""Which headers a request gets, and where it goes. Pure.

* :func:`rules_of` turns opened Secrets into :class:`Rule` s, with values written into their headers.
* :func:`plan` decides for one request. Headers of every bound name are taken out of it, whatever its path; those of the
  rules it lies below are set. A request goes to the ``via`` of the longest such path that has one, and then carries the
  headers of that ``via`` alone: a Secret is never sent where it was not bound to go.
* Headers of one connection (``Connection``, ``Keep-Alive``, ``TE``, ``Trailer``, ``Proxy-*``) end here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from vault.gate.doorkeeper import CannotOpen, Opened
from vault.gate.heads import Headers, Request
from vault.gate.paths import is_below, normalised
from vault.values import Value

_DEFAULT_INJECT: Final = {"header": "Authorization", "format": "Bearer {value}"}
_BASE64 = re.compile(r"\{base64:((?:[^{}]|\{value\})*)\}")
_TEXT = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_ENDS_HERE = frozenset({b"connection", b"keep-alive", b"te", b"trailer", b"host"})


@dataclass(frozen=True, slots=True)
class Place:
    """A server that requests are sent to; ``base`` is the path of a ``via``, and ``via`` its URL as it was written."""

    host: str
    port: int = 443
    tls: bool = True
    base: str = ""
    via: str | None = None

    @property
    def authority(self) -> str:
        """What ``Host`` says there."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Headers for the requests at or below ``path`` (empty: every one), and the ``via`` they go to."""

    path: str
    names: frozenset[bytes]
    """Lower-cased; taken out of every request."""
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    via: Place | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One request as it is sent."""

    place: Place
    target: str
    headers: Headers = field(repr=False)


def rules_of(opened: Sequence[Opened], subject: str | None) -> tuple[Rule, ...]:
    """Raises :class:`CannotOpen` for a value that no header can hold."""
    return tuple(_rule(secret, subject) for secret in opened)


def plan(request: Request, host: str, rules: Sequence[Rule]) -> Plan:
    """``request.target`` is in origin form and its ``Host`` was checked."""
    path, mark, query = request.target.partition("?")
    matching = [rule for rule in rules if is_below(path, rule.path)]
    led = max((rule for rule in matching if rule.via is not None), key=lambda rule: len(rule.path), default=None)
    via = None if led is None else led.via
    place, target = Place(host), request.target
    if led is not None and via is not None:
        place = via
        target = (place.base + normalised(path)[len(normalised(led.path)) :] or "/") + mark + query
    names = frozenset(name for rule in rules for name in rule.names)
    headers: Headers = [(b"Host", place.authority.encode("ascii"))]
    headers += [(name, value) for name, value in request.headers if not _drops(name.lower(), names)]
    headers += [header for rule in matching if rule.via == via for header in rule.headers]
    if request.close:
        headers.append((b"Connection", b"close"))
    return Plan(place, target, headers)


def passed_on(request: Request, authority: str) -> Headers:
    """The headers of a request without Secrets, for a server of this ``Host``."""
    headers: Headers = [(b"Host", authority.encode("ascii"))]
    headers += [(name, value) for name, value in request.headers if not _drops(name.lower(), frozenset())]
    if request.close:
        headers.append((b"Connection", b"close"))
    return headers


def _drops(name: bytes, bound: frozenset[bytes]) -> bool:
    return name in bound or name in _ENDS_HERE or name.startswith(b"proxy-")


def _rule(secret: Opened, subject: str | None) -> Rule:
    binding = secret.binding
    headers = [(name, _checked(text)) for name, text in _headers(secret.type, binding, secret.value)]
    names = {name.lower().encode("ascii") for name, _ in headers}
    identity = binding.get("identity")
    if identity is not None:
        names.add(identity["header"].lower().encode("ascii"))
        if subject:
            headers.append((identity["header"], _checked(subject)))
    encoded = tuple((name.encode("ascii"), text) for name, text in headers)
    return Rule(_path(binding), frozenset(names), encoded, _via(binding))


def _headers(type: str, binding: Mapping[str, Any], value: Value) -> list[tuple[str, str]]:
    try:
        if type == "headers":
            return list(value.reveal_headers().items())
        if type == "bearer":
            return [("Authorization", f"Bearer {value.reveal_text()}")]
        inject = binding.get("inject", _DEFAULT_INJECT)
        return [(inject["header"], written(inject["format"], value.reveal_text()))]
    except LookupError:
        raise CannotOpen from None


def written(format: str, value: str) -> str:
    """``format`` with the value in it; a ``{base64:...}`` group is encoded with what it holds."""
    encoded = _BASE64.search(format)
    if encoded is None:
        return format.replace("{value}", value)
    inside = base64.b64encode(encoded[1].replace("{value}", value).encode()).decode("ascii")
    before, after = format[: encoded.start()], format[encoded.end() :]
    return before.replace("{value}", value) + inside + after.replace("{value}", value)


def _checked(text: str) -> bytes:
    data = text.encode().strip(b" \t")
    if not _TEXT.fullmatch(data):
        raise CannotOpen
    return data


def _path(binding: Mapping[str, Any]) -> str:
    return urlsplit(binding["url"]).path.rstrip("/") if "url" in binding else ""


def _via(binding: Mapping[str, Any]) -> Place | None:
    if "via" not in binding:
        return None
    parts = urlsplit(binding["via"])
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    return Place(str(parts.hostname), port, tls, parts.path.rstrip("/"), binding["via"])
