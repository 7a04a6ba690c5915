"""JSON bytes of a stranger, read strictly.

:func:`parse_json` takes exactly one UTF-8 JSON object (RFC 8259) whose meaning cannot be argued about: no duplicate
member names, no NaN or infinity, no lone surrogates, no integers beyond 64 bits, at most ``DEPTH_MAX`` levels.
Everything else is :class:`~nylorun.kernel.errors.InvalidRequest`; no other exception leaves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from nylorun.kernel.errors import InvalidRequest, Problem

DEPTH_MAX = 64
_INT_LOW, _INT_HIGH = -(2**63), 2**63 - 1


class _Fault(Exception):
    """Carries the message out of the decoder's hooks."""


def parse_json(raw: bytes, *, nul: bool = False) -> dict[str, Any]:
    """The object that ``raw`` holds; absent or empty means ``{}``. ``nul`` allows U+0000 inside strings."""
    if not raw.strip(b" \t\r\n"):
        return {}
    document = _decoded(raw)
    if not isinstance(document, dict):
        raise _invalid("must be a JSON object")
    # Both walks are rare: text without escapes cannot hold a surrogate or NUL, few brackets cannot nest deeply.
    if b"\\u" in raw or raw.count(b"[") + raw.count(b"{") > DEPTH_MAX:
        problems = list(_faults(document, nul))
        if problems:
            raise InvalidRequest(problems)
    return document


def pointer(*parts: str | int) -> str:
    """The JSON Pointer (RFC 6901) to a member."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def _decoded(raw: bytes) -> Any:
    try:
        return _decoder.decode(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise _invalid("is not UTF-8") from None
    except _Fault as fault:
        raise _invalid(str(fault)) from None
    except RecursionError:
        raise _invalid(f"is nested deeper than {DEPTH_MAX} levels") from None
    except ValueError as error:
        raise _invalid(_where(error)) from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _Fault(f"names the member {_shown(name)} twice")
    return members


def _integer(text: str) -> int:
    if len(text) > 20 or not _INT_LOW <= int(text) <= _INT_HIGH:
        raise _Fault("holds an integer beyond 64 bits")
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Fault("holds a number that is too large")
    return number


def _constant(text: str) -> Any:
    raise _Fault(f"holds {text}, which is not JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_number, parse_constant=_constant
)


def _faults(document: dict[str, Any], nul: bool) -> Iterator[Problem]:
    """Texts and depths that are no good, found without recursion."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            if message := _text_fault(value, nul):
                yield {"path": _safe(pointer(*path)), "message": message}
        elif isinstance(value, dict | list):
            if len(path) >= DEPTH_MAX:
                yield {"path": "", "message": f"is nested deeper than {DEPTH_MAX} levels"}
                return
            if isinstance(value, dict):
                waiting.extend((path, name) for name in value if _text_fault(name, nul))
                waiting.extend(((*path, name), member) for name, member in value.items())
            else:
                waiting.extend(((*path, index), entry) for index, entry in enumerate(value))


def _text_fault(text: str, nul: bool) -> str | None:
    if not nul and "\x00" in text:
        return "must not hold the character U+0000"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must not hold half a surrogate pair"
    return None


def _safe(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _shown(name: str) -> str:
    return json.dumps(name if len(name) <= 60 else name[:60] + "…")


def _where(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: line {error.lineno}, column {error.colno}"
    return "is not JSON"


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest([{"path": "", "message": message}])
