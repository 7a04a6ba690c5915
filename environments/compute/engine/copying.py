"""The operations of disk copies as the Engine channel offers them: ``tree.list``, ``tree.read``, ``tree.write``.

A reader may rely on: what the tree or the stream says is :class:`ToolError`, and lost connections pass through.
"""

from __future__ import annotations

from environments.compute.engine.filling import Filling
from environments.compute.engine.listing import Listing
from environments.compute.engine.reading import Reading, collect
from environments.compute.engine.records import BadRecord
from environments.compute.engine.tree import tool_error
from environments.compute.engine.wire import ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from environments.compute.engine.files import Body, Run, Sink
    from environments.compute.engine.tree import Tree


def listing(*, content: bool) -> Run:
    """``tree.list``, with the content of small files or without."""
    return lambda tree, _body, sink: _failing(lambda: Listing(tree.root, sink, content=content).run())


def _read(tree: Tree, body: Body, sink: Sink) -> dict[str, Any]:
    request = collect(body)
    return _failing(lambda: Reading(tree.root, sink).run(request))


def _write(tree: Tree, body: Body, _sink: Sink) -> dict[str, Any]:
    return Filling(tree.root).run(body)


def _failing(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return run()
    except BadRecord as error:
        raise ToolError("tool.failed", str(error)) from error
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        raise tool_error(error, "/workspace") from error


RUNS: dict[str, Run] = {"tree.read": _read, "tree.write": _write}
