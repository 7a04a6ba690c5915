"""Raw content: bytes somebody stored, whole or one range of them (RFC 9110 §14).

* One satisfiable ``bytes=`` range is answered 206; one that lies outside the content is 416 with its size.
* Another unit, several ranges, a malformed header and one of more than ``RANGE_MAX`` characters are ignored, as the RFC
  lets a server do: the answer is the whole. Numbers may have any size.
* Raw content never runs as a page of this server: ``nosniff``, a sandboxing policy and ``attachment`` go with it.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from django.http import StreamingHttpResponse

from nylorun.kernel.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes=\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.IGNORECASE)
RANGE_MAX = 256
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._ -]{1,100}")

OCTETS = "application/octet-stream"
_PACKED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}

RAW_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
}


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes ``start`` (inclusive) to ``end`` (exclusive) of a content of ``size`` bytes."""

    start: int
    end: int
    size: int

    @property
    def length(self) -> int:
        """How many bytes it has."""
        return self.end - self.start

    @property
    def partial(self) -> bool:
        """Whether it is less than the whole."""
        return self.length < self.size

    @property
    def content_range(self) -> str:
        """Its ``Content-Range``."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


def wanted_span(header: str | None, size: int) -> Span | None:
    """The one range that ``Range`` asks for, or ``None`` for the whole; raises :class:`RangeNotSatisfiable`."""
    if header is None or len(header) > RANGE_MAX:
        return None
    match = _RANGE.fullmatch(header)
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        length = min(int(match[2]), size)
        if length == 0:
            raise RangeNotSatisfiable(size)
        return Span(size - length, size, size)
    start = int(match[1])
    last = int(match[2]) if match[2] else size - 1
    if last < start and match[2]:
        return None  # malformed: the last byte stands before the first
    if start >= size:
        raise RangeNotSatisfiable(size)
    return Span(start, min(last + 1, size), size)


def raw_answer(
    chunks: Iterable[bytes],
    *,
    length: int | None,
    span: Span | None = None,
    name: str | None = None,
    content_type: str = OCTETS,
    etag: str | None = None,
) -> StreamingHttpResponse:
    """Stream ``chunks`` as raw content: the bytes of ``span`` when there is one, else the whole of ``length``."""
    response = StreamingHttpResponse(chunks, status=200 if span is None else 206, content_type=content_type)
    for header, value in RAW_HEADERS.items():
        response.headers[header] = value
    response.headers["Content-Disposition"] = _attachment(name)
    response.headers["Accept-Ranges"] = "bytes"
    if span is not None:
        response.headers["Content-Range"] = span.content_range
        length = span.length
    if length is not None:
        response.headers["Content-Length"] = str(length)
    if etag is not None:
        response.headers["ETag"] = etag
    return response


def _attachment(name: str | None) -> str:
    if name is None:
        return "attachment"
    if _PLAIN_NAME.fullmatch(name):
        return f'attachment; filename="{name}"'
    return f"attachment; filename*=UTF-8''{quote(name, safe='')}"


def media_type_of(name: str) -> str:
    """The media type that a file's name suggests; of packed content that of the packing, as its bytes are."""
    found, packing = mimetypes.guess_type(name, strict=True)
    if packing is not None:
        return _PACKED.get(packing, OCTETS)
    return found or OCTETS


def begun(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, the first of them read already: what refuses to be read is an ordinary error of the request."""
    return _Begun(next(chunks, b""), chunks)


class _Begun(Iterator[bytes]):
    """A first piece and the rest; closing it closes the rest, so that a client that leaves ends the reading."""

    def __init__(self, first: bytes, rest: Iterator[bytes]) -> None:
        self._first: bytes | None = first
        self._rest = rest

    def __next__(self) -> bytes:
        first, self._first = self._first, None
        return next(self._rest) if first is None else first

    def close(self) -> None:
        """End the reading."""
        getattr(self._rest, "close", lambda: None)()
