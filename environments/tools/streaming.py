"""Streams of a call: the call runs in a thread of its own, so a client that goes away does not end it.

What a client does not take is not kept: the queue between is bounded, and once the client is gone its output is only
counted by the call itself (memory stays flat, the process is not blocked).
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from django.db import connection
from django.http import StreamingHttpResponse

from environments.compute.contract import Answer
from nylorun.http.handler import as_api_error
from nylorun.kernel.clock import monotonic
from nylorun.kernel.errors import ApiError

SSE_KEEPALIVE = 15.0
STALL = 20.0
KILL_LOOK = 1.0
_BACKLOG = 256


@dataclass(slots=True)
class Client:
    """The other end of a stream: takes pieces while it listens."""

    kill_on_leave: bool = False
    pieces: queue.Queue[tuple[str, object]] = field(default_factory=lambda: queue.Queue(_BACKLOG))
    gone: threading.Event = field(default_factory=threading.Event)
    cancel: threading.Event = field(default_factory=threading.Event)

    def leave(self) -> None:
        """The client went away: its output is dropped from here on, and its call goes on unless it asked otherwise."""
        self.gone.set()
        if self.kill_on_leave:
            self.cancel.set()

    def give(self, kind: str, piece: object) -> None:
        """Hand a piece over; waits for a slow client, not for one that is gone or takes nothing for ``STALL``."""
        patience = monotonic() + STALL
        while not self.gone.is_set():
            try:
                self.pieces.put((kind, piece), timeout=0.5)
            except queue.Full:
                if monotonic() > patience:
                    self.leave()
                continue
            return


def run_beside(client: Client, work: Callable[[], Answer]) -> None:
    """Run a call in a thread of its own; its end, or what refused it, is the last piece."""

    def run() -> None:
        try:
            client.give("answer", work())
        except ApiError as refusal:
            client.give("refusal", refusal)
        except Exception as error:  # noqa: BLE001 the request's thread raises it where it is translated and logged
            fault = as_api_error(error)
            fault.__cause__ = error
            client.give("refusal", fault)
        finally:
            connection.close()

    threading.Thread(target=run, name="call", daemon=True).start()


def sse(frames: Iterator[bytes]) -> StreamingHttpResponse:
    """A stream of server-sent events."""
    response = StreamingHttpResponse(frames, content_type="text/event-stream; charset=utf-8")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response


def frames(client: Client, shown: Callable[[Answer], object]) -> Iterator[bytes]:
    """``stdout`` and ``stderr`` frames as they come, then ``exit``; ids count from 0."""
    number = 0
    try:
        yield b": begun\n\n"  # the headers go out now, however long the command is silent
        while True:
            kind, value = _next(client)
            if kind == "silence":
                yield b": keep-alive\n\n"
                continue
            if isinstance(value, ApiError):
                value = Answer("failed", code="tool.interrupted", message=value.message)
            if isinstance(value, Answer):
                yield _frame(number, "exit", shown(value))
                return
            if kind in ("stdout", "stderr"):
                yield _frame(number, kind, {"text": value})
                number += 1
    finally:
        client.leave()


def wait_for_start(client: Client) -> None:
    """Wait until the call is sent (its ``open`` piece); a refusal that came instead is an error of the request."""
    kind, value = client.pieces.get()
    if kind == "refusal" and isinstance(value, ApiError):
        client.leave()
        raise value


def _next(client: Client) -> tuple[str, object]:
    try:
        # A client that wants its command ended with it is looked after more often: writing is what tells that it left.
        return client.pieces.get(timeout=KILL_LOOK if client.kill_on_leave else SSE_KEEPALIVE)
    except queue.Empty:
        return "silence", ""


def _frame(number: int, event: str, data: object) -> bytes:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return f"id: {number}\nevent: {event}\ndata: {text}\n\n".encode()
