"""YAML bytes of a stranger, read as the JSON object they mean.

:func:`parse_yaml` takes one YAML 1.2 document (https://yaml.org/spec/1.2.2, core schema) that holds an object. Tags,
anchors, aliases, directives, duplicate keys and keys that are no strings are refused, so nothing is built, repeated or
read in two ways; depth and number of nodes are bounded while reading. Dates stay strings. What is left passes the rules
of :func:`nylorun.http.shape.parse_json`. Every fault is :class:`~nylorun.kernel.errors.InvalidRequest`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from nylorun.http.shape import parse_json
from nylorun.kernel.errors import InvalidRequest

NODES_MAX = 20_000
"""More than any Manifest has; the reader is plain Python, so this also bounds its time."""
DEPTH_MAX = 64

_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DIGITS_MAX = 20


class _Fault(Exception):
    """Carries the message out of the reader."""


def parse_yaml(raw: bytes) -> dict[str, Any]:
    """The object that ``raw`` holds; an absent or empty document means ``{}``."""
    try:
        document = _document(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise _invalid("is not UTF-8") from None
    except _Fault as fault:
        raise _invalid(str(fault)) from None
    except (YAMLError, RecursionError, ValueError) as error:
        raise _invalid(_where(error)) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise _invalid("must be an object")
    return parse_json(json.dumps(document).encode())


def _document(text: str) -> Any:
    values = _Builder()
    documents = 0
    for event in _events(text):
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1 or event.version or event.tags:
                raise _Fault("must be one document without directives")
        elif isinstance(event, NodeEvent):
            _plain(event)
            values.start(event)
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            values.end()
    return values.root


def _events(text: str) -> Iterator[Event]:
    events: Iterator[Event] = YAML(typ="safe", pure=True).parse(text)
    return events


def _plain(event: NodeEvent) -> None:
    if isinstance(event, AliasEvent) or event.anchor is not None:
        raise _Fault("must not hold anchors and aliases")
    if isinstance(event, ScalarEvent | SequenceStartEvent | MappingStartEvent) and event.tag is not None:
        raise _Fault("must not hold tags")


class _Builder:
    """Builds plain data from events, without recursion."""

    def __init__(self) -> None:
        self.root: Any = None
        self._open: list[Any] = []
        self._keys: list[str | None] = []
        self._nodes = 0

    def start(self, event: NodeEvent) -> None:
        """Take one node: a scalar, or the start of a list or object."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise _Fault(f"has more than {NODES_MAX} nodes")
        if self._open and isinstance(self._open[-1], dict) and self._keys[-1] is None:
            self._keys[-1] = _key(event, self._open[-1])
            return
        value = _scalar(event) if isinstance(event, ScalarEvent) else {} if isinstance(event, MappingStartEvent) else []
        self._put(value)
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            self._open.append(value)
            self._keys.append(None)
            if len(self._open) > DEPTH_MAX:
                raise _Fault(f"is nested deeper than {DEPTH_MAX} levels")

    def end(self) -> None:
        """Close the innermost list or object."""
        self._open.pop()
        self._keys.pop()

    def _put(self, value: Any) -> None:
        if not self._open:
            self.root = value
        elif isinstance(self._open[-1], list):
            self._open[-1].append(value)
        else:
            self._open[-1][self._keys[-1]] = value
            self._keys[-1] = None


def _key(event: NodeEvent, members: dict[str, Any]) -> str:
    name = _scalar(event) if isinstance(event, ScalarEvent) else None
    if not isinstance(name, str):
        raise _Fault("must name its members with strings")
    if name in members:
        raise _Fault(f"names the member {json.dumps(name[:60])} twice")
    return name


def _scalar(event: ScalarEvent) -> Any:
    text = str(event.value)
    if not event.implicit[0]:
        return text
    folded = text.lower() if text in (text.lower(), text.upper(), text.capitalize()) else text
    if folded in _WORDS:
        return _WORDS[folded]
    return _number(text)


def _number(text: str) -> Any:
    if _INTEGER.fullmatch(text) or _BASED.fullmatch(text):
        if len(text) > _DIGITS_MAX:
            raise _Fault("holds an integer beyond 64 bits")
        return int(text, 10 if _INTEGER.fullmatch(text) else 0)
    if _FLOAT.fullmatch(text) or _NO_NUMBER.fullmatch(text):
        return float(text.replace(".", "", 1) if _NO_NUMBER.fullmatch(text) else text)
    return text


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return "is not YAML" if mark is None else f"is not YAML: line {mark.line + 1}, column {mark.column + 1}"


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest([{"path": "", "message": message}])
