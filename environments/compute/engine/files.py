"""The file operations of the Engine channel, the same for every Engine: checked arguments in, result out.

A reader may rely on:
  * ``prepare`` raises :class:`Refused` (``bad_request``) before anything has run; what it returns raises
    :class:`ToolError` for what the tree says, and :class:`Cancelled` or :class:`ClientGone` for what the client does;
  * file bytes pass through in pieces of at most 256 KiB (reading) or one frame (writing); no file is held in memory.
"""

from __future__ import annotations

from environments.compute.engine import jsonc
from environments.compute.engine.wire import MAX_RESULT, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from environments.compute.engine.tree import Tree
    from environments.compute.engine.wire import Header

    Sink = Callable[[bytes | memoryview], None]
    Body = Iterable[bytes]
    Run = Callable[[Tree, Body, Sink], dict[str, Any]]

PATH_MAX = 4096


class Args:
    """Reads the arguments of one call; a wrong one is a refusal that names it."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self._raw = raw

    def text(self, name: str, default: str | None = None, most: int = PATH_MAX) -> str:
        value = self._raw.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or len(value) > most:
            raise _bad(name, f"a text of at most {most} characters")
        return value

    def flag(self, name: str) -> bool:
        value = self._raw.get(name)
        if value is not None and not isinstance(value, bool):
            raise _bad(name, "true or false")
        return bool(value)

    def number(self, name: str, least: int, most: int) -> int:
        value = self._raw.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _bad(name, f"a whole number from {least} to {most}")
        return value

    def optional_number(self, name: str) -> int | None:
        return None if self._raw.get(name) is None else self.number(name, 0, 1 << 62)

    def mode(self, name: str) -> int:
        value = self.text(name, "0644", 4)
        if len(value) != 4 or value[0] != "0" or not all(digit in "01234567" for digit in value):
            raise _bad(name, "a mode such as 0644")
        return int(value, 8)

    def texts(self, name: str) -> dict[str, str]:
        value = self._raw.get(name) or {}
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise _bad(name, "an object of texts")
        if any("\0" in key + item or "=" in key or not key for key, item in value.items()):
            raise _bad(name, "an object of texts without NUL, under names without '='")
        return value


def _bad(name: str, wanted: str) -> Refused:
    return Refused("bad_request", f"{name} must be {wanted}.")


def _read(args: Args) -> Run:
    path, limit = args.text("path"), args.optional_number("limit")
    offset = args.optional_number("offset") or 0
    return lambda tree, _body, sink: tree.read(path, offset, limit, sink)


def _write(args: Args) -> Run:
    path, mode, most = args.text("path"), args.mode("mode"), args.optional_number("maxBytes")
    parents = args.flag("createParents")
    return lambda tree, body, _sink: tree.write(path, body, mode=mode, make_parents=parents, max_bytes=most)


def _list(args: Args) -> Run:
    path, recursive = args.text("path", "."), args.flag("recursive")
    return lambda tree, _body, _sink: _fitted(tree.list(path, recursive=recursive))


def _fitted(listing: dict[str, Any]) -> dict[str, Any]:
    """The listing, or as much of it from its start as one result carries; paths too long to be called are left out."""
    reachable = [entry for entry in listing["entries"] if len(entry["path"]) <= PATH_MAX]
    if len(reachable) < len(listing["entries"]):
        listing = {**listing, "entries": reachable, "truncated": True}
    room = MAX_RESULT - 2 * PATH_MAX
    for index, entry in enumerate(listing["entries"]):
        room -= len(jsonc.dumps(entry)) + 1
        if room < 0:
            return {**listing, "entries": listing["entries"][:index], "truncated": True}
    return listing


def _stat(args: Args) -> Run:
    path = args.text("path")
    return lambda tree, _body, _sink: tree.stat(path)


def _remove(args: Args) -> Run:
    path, recursive = args.text("path"), args.flag("recursive")
    return lambda tree, _body, _sink: tree.remove(path, recursive=recursive)


def _move(args: Args) -> Run:
    source, target = args.text("from"), args.text("to")
    return lambda tree, _body, _sink: tree.move(source, target)


def _copying(op: str) -> Callable[[Args], Run]:
    def prepare_copy(args: Args) -> Run:
        from environments.compute.engine import copying  # noqa: PLC0415 - loaded when a disk is first copied

        return copying.listing(content=args.flag("content")) if op == "tree.list" else copying.RUNS[op]

    return prepare_copy


COPY_OPS = ("tree.list", "tree.read", "tree.write")
FILE_OPS: dict[str, Callable[[Args], Run]] = {
    "read": _read,
    "write": _write,
    "list": _list,
    "stat": _stat,
    "remove": _remove,
    "move": _move,
    **{op: _copying(op) for op in COPY_OPS},
}


def copy_of(header: Header) -> tuple[str, int]:
    """The copy that a call belongs to, and which attempt of it (from 1)."""
    args = Args(header.args)
    copy = args.text("copy", most=64)
    if not copy:
        raise _bad("copy", "the name of an Operation")
    return copy, args.number("attempt", 1, 1 << 31)


def prepare(op: str, args: dict[str, Any]) -> Run:
    """Check ``args`` of the file operation ``op``; the result is called with the tree, the body and the sink."""
    return FILE_OPS[op](Args(args))
