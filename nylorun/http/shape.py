"""Shapes of bodies and query parameters, and their faults in the words of this interface.

* :class:`Body` is strict: by wire name (camelCase) only, no unknown members, no conversion between types. It is read in
  pydantic's JSON mode, so enums, tuples and times may be declared; they come from JSON strings and lists.
* :class:`Query` reads texts: integers by grammar, booleans ``true|1|false|0``; a parameter declared as a list is
  repeatable, every other one may be sent once.
* Every fault of an input is reported, each with a JSON Pointer (``?name`` for a query parameter).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from nylorun.http import problems
from nylorun.http.jsonbody import parse_json
from nylorun.http.problems import Misfit, problems_of
from nylorun.kernel.errors import InvalidRequest, Problem

__all__ = ["Body", "Misfit", "Post", "Query", "parse_json", "problems_of", "read_body", "read_query"]

B = TypeVar("B", bound=BaseModel)
Q = TypeVar("Q", bound="Query")

_PARAMETERS_MAX = 200
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

RequestId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$")]


def _kind(annotation: Any) -> tuple[type | None, bool]:
    """What a parameter of this annotation is converted to, and whether it is repeatable."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0])
    if origin in (Union, UnionType):
        found = [_kind(one) for one in inner if one is not type(None)]
        return found[0] if len(found) == 1 else (None, False)
    if origin in (list, tuple, set, frozenset, Sequence):
        return _kind(inner[0])[0], True
    return (annotation if annotation in (int, bool) else None), False


class Shape(BaseModel):
    """Strict, frozen, by wire name: the base of every object inside a body."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=to_camel)


class Body(Shape):
    """The body of a request. ``requestId`` is logged and written to audit rows; no comparison sees it."""

    request_id: RequestId | None = None

    @field_validator("request_id", "idempotency_key", mode="before", check_fields=False)
    @classmethod
    def _present(cls, value: object) -> object:
        """Absent is allowed, ``null`` is not: it is no string."""
        if value is None:
            raise ValueError("must be a string")
        return value


class Post(Body):
    """The body of a ``POST`` or of a Secret write, which may carry the idempotency key too."""

    idempotency_key: IdempotencyKey | None = None


class Query(BaseModel):
    """Query parameters. Subclasses declare ``str``, ``int``, ``bool``, ``Literal`` or lists of them."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=to_camel)

    kinds: ClassVar[dict[str, tuple[type | None, bool]]] = {}
    """Parameter name -> (``int``, ``bool`` or ``None`` for text; whether it is repeatable)."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.kinds = {field.alias or name: _kind(field.annotation) for name, field in cls.model_fields.items()}


class Paging(Query):
    """``limit`` and ``cursor``: subclass it for the query of a list."""

    limit: Annotated[int, problems.between(1, 200)] | None = None
    cursor: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None


def read_body(model: type[B], raw: bytes, *, nul: bool = False) -> B:
    """The body as ``model``; raises :class:`InvalidRequest` with every problem."""
    document = parse_json(raw, nul=nul)
    try:
        return model.model_validate_json(raw if document else b"{}")
    except ValidationError as error:
        raise InvalidRequest(problems_of(error, document=document)) from None


def read_query(model: type[Q], query_string: str) -> Q:
    """The query as ``model``; raises :class:`InvalidRequest` with every problem."""
    values, faults = _values(model, _pairs(query_string)) if query_string else ({}, [])
    try:
        query = model.model_validate_json(json.dumps(values))
    except ValidationError as error:
        known = {fault["path"] for fault in faults}
        faults += [fault for fault in problems_of(error, prefix="?") if fault["path"] not in known]
    if faults:
        raise InvalidRequest(faults)
    return query


def _pairs(query_string: str) -> list[tuple[str, str]]:
    if _BAD_ESCAPE.search(query_string):
        raise _unreadable("holds a malformed percent-encoding")
    try:
        pairs = parse_qsl(query_string, keep_blank_values=True, errors="strict", max_num_fields=_PARAMETERS_MAX)
    except UnicodeDecodeError:
        raise _unreadable("is not UTF-8") from None
    except ValueError:
        raise _unreadable(f"has more than {_PARAMETERS_MAX} parameters") from None
    if any("\x00" in name for name, _ in pairs):
        raise _unreadable("must not hold the character U+0000")
    return pairs


def _values(model: type[Query], pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, Any], list[Problem]]:
    values: dict[str, Any] = {}
    faults: list[Problem] = []
    for name, text in pairs:
        kind, repeatable = model.kinds.get(name, (None, False))
        value = _converted(kind, text)
        if value is None:
            faults.append({"path": f"?{name}", "message": _wanted(kind, text)})
        elif repeatable:
            values.setdefault(name, []).append(value)
        elif name in values:
            faults.append({"path": f"?{name}", "message": "must be sent once"})
        else:
            values[name] = value
    return values, faults


def _converted(kind: type | None, text: str) -> Any:
    """The value of a parameter; ``None`` when it is none of this kind."""
    if "\x00" in text:
        return None
    if kind is int:
        return int(text) if _INTEGER.fullmatch(text) else None
    return _BOOLEANS.get(text) if kind is bool else text


def _wanted(kind: type | None, text: str) -> str:
    if "\x00" in text:
        return "must not hold the character U+0000"
    return "must be an integer" if kind is int else "must be true, 1, false or 0"


def _unreadable(message: str) -> InvalidRequest:
    return InvalidRequest([{"path": "?", "message": message}])
