"""Paths stay encoded until a view asks for one segment: an id may hold an encoded ``/``.

The converters ``raw`` (one segment) and ``tail`` (one or more) match the undecoded path, which
:mod:`nylorun.wsgi` hands to the routes.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

from django.urls import register_converter

from nylorun.kernel.errors import InvalidRequest

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_REFUSED_IN_TAIL = frozenset({"", ".", ".."})


class RawSegment:
    """One segment of the undecoded path."""

    regex = "[^/]+"

    def to_python(self, value: str) -> str:
        """The segment as it was sent."""
        return value

    def to_url(self, value: str) -> str:
        """The segment of a plain value."""
        return encoded(value)


class Tail(RawSegment):
    """One or more segments of the undecoded path; empty ones are refused by :func:`decoded_tail`."""

    regex = ".+"

    def to_url(self, value: str) -> str:
        """The segments of a plain relative path."""
        return quote(value, safe="/")


register_converter(RawSegment, "raw")
register_converter(Tail, "tail")


def encoded(value: str) -> str:
    """``value`` as one segment, for the server's own URLs and messages."""
    return quote(value, safe="")


def decoded(segment: str, name: str) -> str:
    """The text of one segment; a malformed escape, one that is not UTF-8, or a NUL is a fault of the path."""
    if "%" not in segment and "\x00" not in segment:
        return segment
    if _BAD_ESCAPE.search(segment):
        raise _invalid(name, "has a malformed percent-encoding")
    try:
        text = unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise _invalid(name, "is not UTF-8") from None
    if "\x00" in text:
        raise _invalid(name, "must not hold the character U+0000")
    return text


def decoded_tail(tail: str, name: str) -> list[str]:
    """The segments of a relative path, each decoded on its own: none is empty, ``.``, ``..`` or holds a ``/``."""
    segments = [decoded(segment, name) for segment in tail.split("/")]
    if any(segment in _REFUSED_IN_TAIL or "/" in segment for segment in segments):
        raise _invalid(name, "must be segments without an encoded /, none of them empty, . or ..")
    return segments


def _invalid(name: str, message: str) -> InvalidRequest:
    return InvalidRequest([{"path": f"{{{name}}}", "message": message}])
