"""The catalogue of Environment events: every type, and what its payload must hold.

Payloads are open: members the catalogue does not name are passed on, members it names are checked. A payload that does
not fit is a bug of ours and aborts the transaction that would write it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


class UncataloguedEvent(AssertionError):
    """A bug: an event the catalogue does not describe."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number_or_null(value: Any) -> bool:
    return value is None or _number(value)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _one_of(*words: str) -> Check:
    return lambda value: value in words


# type -> (members it must have, members it may have)
_PAYLOADS: dict[str, tuple[dict[str, Check], dict[str, Check]]] = {
    # the row and its Vault were made
    "created": ({"kind": _one_of("virtual", "pod", "none"), "labels": _object},
                {"manifest": _object, "from": _object, "forkedFrom": _object}),
    # a new Environment was made beside this one
    "forked": ({"to": _text, "disk": _number_or_null, "manifest": _object, "secrets": _number}, {}),
    # a Session names it from now on, or no longer
    "attached": ({"sessionId": _text}, {}),
    "detached": ({"sessionId": _text, "reason": _one_of("reset", "deleted")}, {}),
    # a pod's Engine joined: the first of a start, or another one on the same volume
    "running": ({"hostEpoch": _number}, {}),
    "relaunched": ({"hostEpoch": _number}, {}),
    # the machine goes, the volume stays
    "suspended": ({"reason": _one_of("stop", "idle", "restart")}, {"snapshot": _object}),
    # it could not be started, filled or set up; it holds no machine
    "failed": ({"reason": _text}, {"setup": _object}),
    # its volume is gone or another one
    "lost": ({"reason": _text}, {}),
    # a new, empty (or filled) disk
    "reset": ({}, {"volumeGeneration": _number, "reason": _one_of("restore", "lost"), "version": _number}),
    # the egress gate refused
    "egress": ({"host": _text, "allowed": lambda value: value is False, "count": _number},
               {"port": _number, "reason": _text}),
    # gone for every caller
    "deleted": ({}, {"reason": _one_of("unused")}),
}  # fmt: skip
_MOVES: dict[str, tuple[dict[str, Check], dict[str, Check]]] = {
    "version_changed": ({"from": _number, "to": _number}, {}),
    "outdated": ({"version": _number, "target": _number, "waiting": _one_of("secrets", "start", "fixed")}, {}),
    "start_failed": ({"version": _number, "reason": _text, "keeps": _number}, {}),
}
_RESERVED = ("memory_updated", "run", "trigger_paused", "trigger_resumed", "trigger_secret_rotated")

ENVIRONMENT_TYPES = tuple(_PAYLOADS)
AGENT_TYPES = (*ENVIRONMENT_TYPES, *_MOVES, *_RESERVED)


def is_type(noun: str, type: str) -> bool:
    """Whether a row of this noun may carry events of this type (an adopted row also writes the moves)."""
    if noun == "agent":
        return type in AGENT_TYPES
    return noun == "environment" and (type in _PAYLOADS or type in _MOVES)


def check_payload(noun: str, type: str, payload: Mapping[str, Any]) -> None:
    """Raise :class:`UncataloguedEvent` unless the catalogue describes this event."""
    rules = {**_PAYLOADS, **_MOVES}.get(type)
    if rules is None or not is_type(noun, type):
        raise UncataloguedEvent(f"{noun}.{type} is not in the catalogue")
    required, optional = rules
    missing = sorted(required.keys() - payload.keys())
    wrong = sorted(name for name, check in {**required, **optional}.items()
                   if name in payload and not check(payload[name]))  # fmt: skip
    if missing or wrong:
        raise UncataloguedEvent(f"{noun}.{type}: missing {missing}, wrong {wrong}")
