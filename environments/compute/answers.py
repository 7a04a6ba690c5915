"""What an Engine may answer, checked: shapes, types and sizes of every operation's result.

A reader may rely on:
  * an :class:`Answer` that ``checked`` gives has what the operation promises, of the right types, and nothing
    unknown;
  * anything else is ``ValueError``; texts of failures are cut to ``MESSAGE_MAX`` characters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from environments.compute.contract import Answer, ToolCode
from environments.compute.engine import jsonc
from environments.compute.engine.tree import LIST_MAX

MESSAGE_MAX = 2000
PATH_MAX = 4096
REASON_MAX = 200
_NUMBER_MAX = 1 << 62
_CODES = frozenset(get_args(ToolCode))
_ENTRY_TYPES = frozenset({"file", "dir", "link", "other"})

Check = Callable[[object], bool]


def _text(most: int) -> Check:
    return lambda value: isinstance(value, str) and len(value) <= most


def _whole(most: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    wanted = _ENTRY | ({"target": _text(PATH_MAX)} if "target" in value else {})
    return value.keys() == wanted.keys() and all(check(value[name]) for name, check in wanted.items())


def _are_entries(value: object) -> bool:
    return isinstance(value, list) and len(value) <= LIST_MAX and all(map(_is_entry, value))


def _are_workspaces(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(age, int | float) and age >= 0 for age in value.values())


def _is_confinement(value: object) -> bool:
    return isinstance(value, dict) and len(value) <= 8 and all(isinstance(item, int) for item in value.values())


_PATH, _NUMBER, _TIME = _text(PATH_MAX), _whole(_NUMBER_MAX), _text(40)
_ENTRY: dict[str, Check] = {
    "path": _PATH,
    "type": lambda value: value in _ENTRY_TYPES,
    "size": _NUMBER,
    "mode": _text(8),
    "modifiedAt": _TIME,
}
_OUTPUTS: dict[str, dict[str, Check]] = {
    "bash": {
        "exitCode": _whole(255),
        "timedOut": _flag,
        "durationMs": _NUMBER,
        "stdoutBytes": _NUMBER,
        "stderrBytes": _NUMBER,
    },
    "read": {"path": _PATH, "size": _NUMBER, "offset": _NUMBER, "length": _NUMBER, "mtime": _TIME, "eof": _flag},
    "write": {"path": _PATH, "size": _NUMBER, "sha256": _text(71), "created": _flag},
    "list": {"path": _PATH, "entries": _are_entries, "truncated": _flag},
    "remove": {"path": _PATH, "removed": _NUMBER},
    "move": {"from": _PATH, "to": _PATH},
    "ping": {"engine": lambda value: value in ("pod", "virtual"), "epoch": _optional(_NUMBER)},
    "kill": {"killed": _flag},
    "close": {},
    "drop": {"removed": _flag},
    "list_workspaces": {"workspaces": _are_workspaces},
    "tree.list": {
        "entries": _NUMBER,
        "skipped": _NUMBER,
        "unreachable": _NUMBER,
        "clockNs": _NUMBER,
    },
    "tree.read": {"files": _NUMBER},
    "tree.write": {"entries": _NUMBER, "bytes": _NUMBER, "refusedXattrs": _NUMBER},
    "tree.hold": {},
    "workspace.swap": {"swapped": _flag},
}

_EXTRA: dict[str, dict[str, Check]] = {"ping": {"confined": _is_confinement}}


def checked(op: str, payload: bytes) -> Answer:
    """The answer in the payload of an ``R`` frame. Raises ``ValueError`` for one the operation may not have."""
    value = jsonc.loads(payload)
    if not isinstance(value, dict):
        raise ValueError("The result is no object.")  # noqa: TRY004 - one error for all that is wrong with an answer
    if value.get("kind") == "failed":
        return _failed(value)
    output = value.get("output")
    if value.get("kind") != "completed" or not isinstance(output, dict):
        raise ValueError("The result is neither completed nor failed.")
    return Answer("completed", output=_picked(op, output))


def _picked(op: str, output: dict[str, Any]) -> Mapping[str, Any]:
    if op == "stat":
        if not _is_entry(output):
            raise ValueError("The result of stat is no entry.")
        return output
    wanted = _OUTPUTS.get(op)
    if wanted is None:  # an operation whose caller knows its result
        return output
    for name, check in wanted.items():
        if name not in output or not check(output[name]):
            raise ValueError(f"{name} in the result of {op} is missing or wrong.")
    extra = _EXTRA.get(op, {})
    return {name: output[name] for name in (*wanted, *(name for name in extra if extra[name](output.get(name))))}


def _failed(value: Mapping[str, Any]) -> Answer:
    code, message = value.get("code"), value.get("message")
    if code not in _CODES or not isinstance(message, str):
        raise ValueError("The failure has no known code or no message.")
    return Answer("failed", code=code, message=message[:MESSAGE_MAX])


def refusal(payload: bytes) -> str:
    """The reason in the payload of an ``N`` frame, as text for people."""
    try:
        value = jsonc.loads(payload)
    except ValueError:
        return "unknown"
    reason = value.get("reason") if isinstance(value, dict) else None
    return reason[:REASON_MAX] if isinstance(reason, str) else "unknown"
