"""The file tools of one workspace, held to its disk limit.

A reader may rely on: what would grow the workspace beyond the limit fails with ``tool.no_space`` and leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from environments.compute.engine.files import prepare
from environments.compute.engine.tree import Tree
from environments.compute.engine.wire import Header
from environments.compute.virtual.meter import Meter


def run(
    header: Header, tree: Tree, body: Iterator[bytes], meter: Meter, limit: int, send: Callable[[bytes], None]
) -> dict[str, Any]:
    """Do what ``header`` asks; file bytes go to ``send`` in pieces. Raises ``ToolError`` and ``Refused``."""
    content = meter.take(body, limit) if header.op == "write" else body
    return prepare(header.op, header.args)(tree, content, send)
