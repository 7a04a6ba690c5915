"""What ``curl`` asks for: the request that a command line describes."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import quote_plus

from environments.compute.virtual.curl_options import Misused, Options
from environments.compute.virtual.landing import READ_FAILED, Landing
from environments.compute.virtual.transfer import Ask, Failure
from environments.compute.virtual.urls import Url

AGENT = "curl/8.0 (nylorun)"
MALFORMED = 3
_OURS = frozenset(("content-length", "transfer-encoding", "connection"))
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True, slots=True)
class Request:
    """One command line's request to a URL; ``stdin`` is ``None`` when nothing is piped in."""

    options: Options
    landing: Landing
    stdin: str | None

    def ask(self, url: Url) -> Ask:
        """It, with its files read; raises ``Failure`` and ``Misused``."""
        options = self.options
        body = self._body()
        if body is not None and options.has("get"):
            url, body = url.with_query(body.decode("utf-8", "replace")), None
        if "upload-file" in options.single:
            body = self.landing.read(options.single["upload-file"])
        method = options.single.get("request") or self._method(body)
        if not method or not set(method) <= _TOKEN:
            raise Failure(MALFORMED, "the method is no word of HTTP")
        return Ask(method, url, tuple(self._headers(url, body)), body, forced="request" in options.single)

    def _method(self, body: bytes | None) -> str:
        if self.options.has("head"):
            return "HEAD"
        if "upload-file" in self.options.single:
            return "PUT"
        return "GET" if body is None else "POST"

    def _body(self) -> bytes | None:
        if not self.options.data:
            return None
        parts = [self._part(kind, text) for kind, text in self.options.data]
        return (b"" if self.options.data[0][0] == "json" else b"&").join(parts)

    def _part(self, kind: str, text: str) -> bytes:
        if kind == "data-urlencode":
            return self._encoded(text)
        if kind == "data-raw" or not text.startswith("@"):
            return text.encode("utf-8")
        data = self.input(text[1:])
        if kind in ("data", "data-ascii"):
            return data.translate(None, b"\r\n\0")
        return data

    def _encoded(self, text: str) -> bytes:
        name, sign, content = text.partition("=")
        if sign:
            return f"{name}{'=' if name else ''}{quote_plus(content)}".encode()
        name, sign, path = text.partition("@")
        if sign:
            return f"{name}{'=' if name else ''}{quote_plus(self.input(path))}".encode()
        return quote_plus(text).encode()

    def input(self, path: str) -> bytes:
        """A file, or standard input for ``-``; raises ``Failure``."""
        if path != "-":
            return self.landing.read(path)
        text = self.stdin or ""
        if "\ufffd" in text:
            raise Failure(READ_FAILED, "standard input is not UTF-8 text; put it into a file and name that: @FILE")
        return text.encode("utf-8")

    def _headers(self, url: Url, body: bytes | None) -> list[tuple[str, str]]:
        given = [_header(line) for line in self.options.headers]
        replaced = {name.lower() for name, _ in given}
        wanted = [pair for pair in self._defaults(url, body) if pair[0].lower() not in replaced]
        wanted += [(name, value) for name, value in given if value is not None and name.lower() not in _OURS]
        return [(name, _clean(value)) for name, value in wanted]

    def _defaults(self, url: Url, body: bytes | None) -> list[tuple[str, str]]:
        single = self.options.single
        wanted = [("User-Agent", single.get("user-agent", AGENT)), ("Accept", "*/*")]
        user = single.get("user", url.user)
        if user is not None:
            wanted.append(("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}"))
        wanted += [(name, single[key]) for key, name in (("referer", "Referer"), ("cookie", "Cookie")) if key in single]
        if "range" in single:
            wanted.append(("Range", f"bytes={single['range']}"))
        if body is not None and any(kind == "json" for kind, _ in self.options.data):
            wanted[1] = ("Accept", "application/json")
            wanted.append(("Content-Type", "application/json"))
        elif body is not None and "upload-file" not in single:
            wanted.append(("Content-Type", "application/x-www-form-urlencoded"))
        return wanted


def _header(line: str) -> tuple[str, str | None]:
    """Name and value of ``-H``; no value: the header is not sent."""
    name, sign, value = line.partition(":")
    if not sign and line.endswith(";"):
        name, sign = line[:-1], ";"
    name = name.strip()
    if not sign or not name or not set(name) <= _TOKEN:
        raise Misused(f"option -H: {name[:40]!r} is no header")
    return name, value.strip() or (None if sign == ":" else "")


def _clean(text: str) -> str:
    if any(character in text for character in "\r\n\0"):
        raise Failure(MALFORMED, "a header is one line")
    return text
