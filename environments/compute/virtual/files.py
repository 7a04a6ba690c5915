"""The file tools of one workspace, held to its disk limit.

A reader may rely on: what would grow the workspace beyond the limit fails with ``tool.no_space`` and leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from environments.compute.engine.files import prepare
from environments.compute.engine.filling import Filling, Quota
from environments.compute.engine.tree import Tree
from environments.compute.engine.wire import Header
from environments.compute.virtual.meter import Meter


class _Quota(Quota):
    """The disk limit of a workspace that is written anew."""

    def __init__(self, meter: Meter, limit: int) -> None:
        self._meter = meter
        self._limit = limit

    def emptied(self) -> None:
        self._meter.emptied()

    def charge(self, size: int) -> None:
        self._meter.charge(size, self._limit)


def run(
    header: Header,
    tree: Tree,
    body: Iterator[bytes],
    meter: Meter,
    limit: int,
    send: Callable[[bytes | memoryview], None],
) -> dict[str, Any]:
    """Do what ``header`` asks; file bytes go to ``send`` in pieces. Raises ``ToolError`` and ``Refused``."""
    if header.op == "tree.write":
        return Filling(tree.root, _Quota(meter, limit)).run(body)
    work = prepare(header.op, header.args)
    if header.op != "write":
        return work(tree, body, send)
    try:
        return work(tree, meter.take(body, limit), send)
    finally:
        meter.settle()
