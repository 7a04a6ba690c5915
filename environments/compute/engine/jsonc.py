"""JSON for small processes: the C parts of CPython's ``json`` without the modules that it drags in.

An Engine starts with every pod, so the 17 ms and 1.3 MB that ``import json`` costs there (for ``re``, ``enum``,
``functools``) would be paid by every wake.

A reader may rely on:
  * ``loads`` takes text or UTF-8 bytes and raises ``ValueError`` for anything that is not one JSON value;
  * ``dumps`` writes compact ASCII and raises ``TypeError`` for a value JSON has no word for.
"""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SPACE = " \t\n\r"


class _Settings:
    """What the scanner of ``json`` asks its decoder for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(word: str) -> None:
        raise ValueError(f"{word} is not JSON")


_scan: Any = _json.make_scanner(_Settings)  # type: ignore[arg-type]  # the stub asks for a json.JSONDecoder


def loads(text: str | bytes) -> Any:
    """Read one JSON value; nothing but white space may stand beside it."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    start = len(text) - len(text.lstrip(SPACE))
    try:
        value, end = _scan(text, start)
    except StopIteration:
        raise ValueError("no JSON value") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except SystemError:  # how the scanner says "not JSON" while json.decoder, whose error it would raise, is not loaded
        raise ValueError("not JSON") from None
    if text[end:].strip(SPACE):
        raise ValueError("more than one JSON value")
    return value


def dumps(value: Any) -> str:
    """Write ``value`` of dict, list, tuple, str, int, float, bool and None."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _json.encode_basestring_ascii(value)
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{_json.encode_basestring_ascii(key)}:{dumps(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(dumps, value)) + "]"
    raise TypeError(f"{type(value).__name__} is not JSON")


def _number(value: int | float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        raise TypeError(f"{value} is not JSON")
    return repr(value)
