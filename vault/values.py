"""The plaintext of a Secret while a process holds it, in a form that does not leak by accident. Pure.

Neither ``repr``, ``str`` nor an f-string shows it, and it can be neither pickled, copied nor written as JSON: what
travels in a log, an exception, a task or a cache is never a value. Who needs the plaintext says so by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

from nylorun.kernel.canonical import canonical
from nylorun.kernel.errors import Problem

VARIABLE_MAX = 32 << 10
HIDDEN_MAX = 8 << 10
HEADERS_MAX = 20


class Value:
    """Either one text or a map of headers. Compared by identity."""

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)

    @classmethod
    def of_text(cls, text: str) -> Self:
        """The value of every type but ``headers``."""
        return cls({"value": text})

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> Self:
        """The value of type ``headers``: the headers by name, as they were sent."""
        return cls({"headers": dict(headers)})

    @classmethod
    def of_plaintext(cls, plaintext: bytes) -> Self:
        """What :meth:`plaintext` gave."""
        return cls(json.loads(plaintext))

    @property
    def has_headers(self) -> bool:
        """Whether it is a map of headers."""
        return "headers" in self._members

    @property
    def header_names(self) -> list[str] | None:
        """The names of the headers, lower-cased and sorted: no secret. ``None`` for a text."""
        return sorted(name.lower() for name in self._members["headers"]) if self.has_headers else None

    def reveal_text(self) -> str:
        """The text. Raises ``LookupError`` for headers."""
        return str(self._members["value"])

    def reveal_headers(self) -> dict[str, str]:
        """The headers. Raises ``LookupError`` for a text."""
        return dict(self._members["headers"])

    def plaintext(self) -> bytes:
        """The canonical JSON that is sealed."""
        return canonical(self._members).encode()

    def __repr__(self) -> str:
        return "<Value hidden>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("a value stays in its process")


def problems_of_value(type: str, value: Value) -> list[Problem]:
    """What is wrong with a value of this type, by path; no message holds any of it."""
    if (type == "headers") != value.has_headers:
        wanted, other = ("headers", "value") if type == "headers" else ("value", "headers")
        return [
            {"path": f"/{wanted}", "message": f"is required for a Secret of type {type}"},
            {"path": f"/{other}", "message": f"is no member of a Secret of type {type}"},
        ]
    if not value.has_headers:
        message = _variable(value.reveal_text()) if type == "environment_variable" else _hidden(value.reveal_text())
        return [{"path": "/value", "message": message}] if message else []
    return _problems_of_headers(value.reveal_headers())


def _problems_of_headers(headers: Mapping[str, str]) -> list[Problem]:
    if not 1 <= len(headers) <= HEADERS_MAX:
        return [{"path": "/headers", "message": f"must hold 1 to {HEADERS_MAX} headers"}]
    problems: list[Problem] = []
    seen: set[str] = set()
    for name, text in headers.items():
        message = "is named twice, ignoring case" if name.lower() in seen else _hidden(text)
        seen.add(name.lower())
        if message:
            problems.append({"path": f"/headers/{name.replace('~', '~0')}", "message": message})
    return problems


def _variable(text: str) -> str | None:
    if len(text.encode()) > VARIABLE_MAX:
        return f"must be at most {VARIABLE_MAX} bytes"
    return "must not hold the character U+0000" if "\0" in text else None


def _hidden(text: str) -> str | None:
    if len(text.encode()) > HIDDEN_MAX:
        return f"must be at most {HIDDEN_MAX} bytes"
    return "must not hold line breaks" if any(character in text for character in "\r\n\0") else None
