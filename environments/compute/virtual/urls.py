"""URLs as ``curl`` and ``wget`` of a virtual workspace take them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import quote, unquote, urljoin, urlsplit

PORTS = {"http": 80, "https": 443}
_AS_IT_IS = "%/?:@!$&'()*+,;=-._~[]|"  # what is sent as it was written


class BadUrl(ValueError):
    """Not a URL that can be asked for; ``scheme`` says that it is for the protocol it names."""

    def __init__(self, message: str, *, scheme: bool = False) -> None:
        super().__init__(message)
        self.scheme = scheme


@dataclass(frozen=True, slots=True)
class Url:
    """A checked URL: ASCII throughout, ``host`` in lower case, ``target`` begins with ``/``."""

    scheme: str
    host: str
    port: int
    target: str
    user: str | None = None
    """``name:password`` of the URL."""

    @property
    def authority(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    @property
    def authority_shown(self) -> str:
        """Host, and its port when it is not the scheme's own."""
        return self.host if self.port == PORTS[self.scheme] else self.authority

    @property
    def origin(self) -> tuple[str, str, int]:
        """What two URLs of one site have in common."""
        return self.scheme, self.host, self.port

    @property
    def name(self) -> str:
        """The last part of its path; empty when it ends in ``/``."""
        return unquote(self.target.partition("?")[0].rpartition("/")[2])

    def with_query(self, query: str) -> Url:
        """The same with more in its query."""
        joined = "&" if "?" in self.target else "?"
        return replace(self, target=f"{self.target}{joined}{quote(query, safe=_AS_IT_IS)}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority_shown}{self.target}"


def parse(text: str) -> Url:
    """Read a URL; without a scheme it is ``http``. Raises ``BadUrl``."""
    if any(character <= " " or character == "\x7f" for character in text):
        raise BadUrl("Malformed input to a URL function")
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = (parts.hostname or ""), parts.port
    except ValueError as error:
        raise BadUrl("URL rejected: malformed") from error
    scheme = parts.scheme.lower()
    if scheme not in PORTS:
        raise BadUrl(f"Protocol {scheme!r} not supported", scheme=True)
    if not host or not host.isascii() or ":" in host:
        raise BadUrl("URL rejected: the host must be a name in ASCII (xn-- for others)")
    target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_AS_IT_IS)
    user = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Url(scheme, host.lower(), port or PORTS[scheme], target, user)


def joined(url: Url, target: str) -> Url:
    """Where a redirect from ``url`` leads; raises ``BadUrl``."""
    try:
        text = urljoin(str(url), target.replace(" ", "%20"))
    except ValueError as error:
        raise BadUrl("URL rejected: malformed") from error
    return parse(text)
