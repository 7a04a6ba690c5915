"""Faults of an input, as ``{path, message}``: pydantic's findings in short English.

A message continues its path: ``/labels/a must be a string``. Paths are JSON Pointers into what was sent; the names
pydantic invents for the branches of a union are left out of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from annotated_types import Interval
from pydantic import ValidationError

from nylorun.http.jsonbody import pointer
from nylorun.kernel.errors import Problem

PROBLEMS_MAX = 100
_PLAIN = {
    "missing": "is required",
    "extra_forbidden": "is not a member of this object",
    "none_required": "must be null",
    "string_type": "must be a string",
    "string_unicode": "must be a string of valid Unicode",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of 64 bits",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "invalid_key": "must be a string",
    "uuid_type": "must be a UUID",
    "uuid_parsing": "must be a UUID",
    "timezone_aware": "must name its time zone, such as 2030-01-01T10:00:00Z",
}
_BY_SUFFIX = {
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
}
_TIMES = ("datetime_", "date_", "time_")


class Misfit(ValueError):
    """Raised by a model's validator: several faults at once, with paths relative to that model's object."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"{problem['path']} {problem['message']}" for problem in problems))
        self.problems = list(problems)


def between(low: int, high: int) -> Interval:
    """A bound for ``Annotated``: at least ``low`` and at most ``high``."""
    return Interval(ge=low, le=high)


def problems_of(error: ValidationError, prefix: str = "", document: Any = None) -> list[Problem]:
    """Every fault, at most ``PROBLEMS_MAX``, one per path.

    ``prefix`` is put before each pointer; ``"?"`` makes query parameters of the first names. With ``document`` (what
    was validated) the names of union branches are left out of the paths.
    """
    found: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False, include_input=False):
        for path, message in _faults(fault, prefix, document):
            messages = found.setdefault(path, [])
            if message not in messages:
                messages.append(message)
    return [{"path": path, "message": " or ".join(said)} for path, said in list(found.items())[:PROBLEMS_MAX]]


def message_of(kind: str, context: Mapping[str, Any], text: str) -> str:
    """The message for one of pydantic's error types."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    for suffix, message in _BY_SUFFIX.items():
        if kind.endswith(suffix):
            return message
    if kind.startswith(_TIMES):
        return "must be a time such as 2030-01-01T10:00:00Z"
    build = _WITH_CONTEXT.get(kind)
    if build is not None:
        return build(context)
    return text[:1].lower() + text[1:]


def _faults(fault: Any, prefix: str, document: Any) -> list[tuple[str, str]]:
    context = fault.get("ctx") or {}
    parts = _parts(fault["loc"], fault["type"], document)
    misfit = context.get("error")
    if isinstance(misfit, Misfit):
        base = _path(parts, prefix)
        return [(base + problem["path"], problem["message"]) for problem in misfit.problems]
    if fault["type"] == "union_tag_not_found":
        parts = (*parts, str(context.get("discriminator", "")).strip("'"))
        return [(_path(parts, prefix), "is required")]
    if prefix == "?" and fault["type"] == "extra_forbidden":
        return [(_path(parts, prefix), "is not a parameter of this route")]
    return [(_path(parts, prefix), message_of(fault["type"], context, fault["msg"]))]


def _path(parts: tuple[str | int, ...], prefix: str) -> str:
    if prefix == "?":
        return f"?{parts[0]}" if parts else "?"
    return (prefix + pointer(*parts)).encode("utf-8", "backslashreplace").decode()


def _parts(loc: tuple[str | int, ...], kind: str, document: Any) -> tuple[str | int, ...]:
    if loc and loc[-1] == "[key]":
        loc = loc[:-1]
    if document is None:
        return loc
    kept: list[str | int] = []
    for index, part in enumerate(loc):
        if _has(document, part):
            document = document[part]
        elif not (kind == "missing" and index == len(loc) - 1):
            continue
        kept.append(part)
    return tuple(kept)


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def _choices(context: Mapping[str, Any]) -> str:
    expected = context.get("expected", context.get("expected_tags", ""))
    return f"must be {str(expected).replace(chr(39), '')}"


def _counted(bound: str, name: str, unit: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda context: f"must be at {bound} {context[name]} {unit}".rstrip()


_WITH_CONTEXT: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "literal_error": _choices,
    "enum": _choices,
    "union_tag_invalid": _choices,
    "string_too_long": _counted("most", "max_length", "characters"),
    "string_too_short": _counted("least", "min_length", "characters"),
    "string_pattern_mismatch": lambda context: f"must match {context['pattern']}",
    "too_long": _counted("most", "max_length", "entries"),
    "too_short": _counted("least", "min_length", "entries"),
    "greater_than_equal": _counted("least", "ge", ""),
    "less_than_equal": _counted("most", "le", ""),
    "greater_than": lambda context: f"must be more than {context['gt']}",
    "less_than": lambda context: f"must be less than {context['lt']}",
    "value_error": lambda context: str(context["error"]),
    "assertion_error": lambda context: str(context["error"]),
}
