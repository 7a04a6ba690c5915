"""Whether a request lies at or below the path a Secret is bound to. Pure.

Servers do not agree on what a path means: some decode ``%2F``, fold ``//``, take ``\\`` for ``/`` or drop ``;…`` from a
segment before they look at ``..``. A Secret is set only when the request lies below its path in **every** one of these
readings; a path that some server could read as another place goes without it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ROUNDS = 4


def is_below(path: str, base: str) -> bool:
    """``path`` is that of a request, without its query; ``base`` has no slash at its end and may be empty."""
    return _covers(normalised(base), normalised(path)) and _covers(_loose(base), _loose(path))


def normalised(path: str) -> str:
    """The path as RFC 3986 §6.2.2 normalises it: escapes of plain characters undone, ``.`` and ``..`` resolved."""
    return _without_dots(_ESCAPE.sub(_unescaped, path))


def _unescaped(match: re.Match[str]) -> str:
    character = chr(int(match[1], 16))
    return character if character in _UNRESERVED else match[0].upper()


def _loose(path: str) -> str:
    """As a server reads it that decodes everything, again and again, and forgives."""
    for _ in range(_ROUNDS):
        decoded = unquote(path, "latin-1")
        if decoded == path:
            break
        path = decoded
    segments = (segment.partition(";")[0].strip("\0\t ") for segment in path.replace("\\", "/").split("/"))
    return _without_dots("/".join(["", *filter(None, segments)]))


def _without_dots(path: str) -> str:
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments and segments[-1] in {".", ".."}:
        kept.append("")
    return "".join("/" + segment for segment in kept)


def _covers(base: str, path: str) -> bool:
    base = base.rstrip("/")
    return path == base or path.startswith(base + "/")
