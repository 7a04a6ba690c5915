"""The file tools of one workspace, held to its disk limit.

A reader may rely on: what would grow the workspace beyond the limit fails with ``tool.no_space`` and leaves nothing; an
answer always fits one frame (a list that would not is cut and says ``truncated``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from environments.compute.engine import jsonc, wire
from environments.compute.engine.files import prepare
from environments.compute.engine.tree import Tree
from environments.compute.engine.wire import Header
from environments.compute.virtual.meter import Meter

_ROOM = wire.MAX_PAYLOAD - 1024


def run(
    header: Header, tree: Tree, body: Iterator[bytes], meter: Meter, limit: int, send: Callable[[bytes], None]
) -> dict[str, Any]:
    """Do what ``header`` asks; file bytes go to ``send`` in pieces. Raises ``ToolError`` and ``Refused``."""
    content = meter.take(body, limit) if header.op == "write" else body
    output = prepare(header.op, header.args)(tree, content, send)
    return fitted(output) if header.op == "list" else output


def fitted(listing: dict[str, Any]) -> dict[str, Any]:
    """The listing, or as much of it from its start as one frame carries."""
    room = _ROOM
    for index, entry in enumerate(listing["entries"]):
        room -= len(jsonc.dumps(entry)) + 1
        if room < 0:
            return {**listing, "entries": listing["entries"][:index], "truncated": True}
    return listing
