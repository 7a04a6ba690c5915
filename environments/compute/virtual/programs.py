"""The programs of a virtual workspace that reach the network: ``curl`` and ``wget``, inside the interpreter.

A reader may rely on:
  * they are there in every workspace; in a call without a way out they say that there is no network;
  * ``load`` loads all they use, before the cage; a way out is there between ``begin`` and ``end``;
  * ``stop``, by any thread, ends what they wait for.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from http.client import HTTPResponse

from bashkit import BuiltinContext, BuiltinResult

from environments.compute.engine.tree import Tree
from environments.compute.virtual import curl, outside, wget
from environments.compute.virtual.curl import Means, Result
from environments.compute.virtual.landing import Landing
from environments.compute.virtual.outside import Outside

NO_NETWORK = 6
_REHEARSAL = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 2\r\n\r\nok"


class Programs:
    """The network programs of one process; at most one call uses them."""

    def __init__(self) -> None:
        self._tree: Tree | None = None
        self._outside: Outside | None = None

    @property
    def builtins(self) -> Mapping[str, Callable[[BuiltinContext], BuiltinResult]]:
        """What the interpreter calls."""
        return {
            "curl": lambda context: self._run(curl.run, context),
            "wget": lambda context: self._run(wget.run, context),
        }

    def begin(self, tree: Tree, way_out: Outside | None) -> None:
        """A command starts, on this tree and with this way out."""
        self._tree, self._outside = tree, way_out

    def end(self) -> None:
        """The command is over."""
        self._outside = None

    def stop(self) -> None:
        """End what waits for the network."""
        if (way_out := self._outside) is not None:
            way_out.close()

    def _run(self, program: Callable[[list[str], Means], Result], context: BuiltinContext) -> BuiltinResult:
        if self._outside is None or self._tree is None:
            return BuiltinResult("", f"{context.name}: this workspace has no network\n", NO_NETWORK)
        landing = Landing(self._tree, context.fs, context.cwd)
        result = program(list(context.argv), Means(self._outside, landing, context.stdin))
        return BuiltinResult(result.out, result.err, result.code)


def load() -> None:
    """Use everything once: nothing can be loaded inside the cage."""
    outside.load()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(_REHEARSAL)
        response = HTTPResponse(ours)
        response.begin()
        response.headers.get("Content-Type", "")
        response.read()
        response.close()
