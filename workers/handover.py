"""From a commit to the broker, without keeping anybody waiting.

One thread of each process takes the messages commits promised and sends them. A broker that does not answer is left
alone for a moment (``PAUSE``) and what came meanwhile is dropped: the rows are there, and the drain sends them when
it is back.
"""

from __future__ import annotations

import logging
import os
import queue
import threading

from nylorun.kernel.clock import monotonic
from nylorun.record.outbox import HandOver, Message
from workers.routing import ROUTES

log = logging.getLogger(__name__)

PAUSE = 1.0
_BACKLOG = 10_000
COUNTDOWN_MAX = 60.0
"""A later look stays with the drain: far-future work is a column, not a message."""


class Sender:
    """The sending thread of one process, started with the first message and again after a fork."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Message] = queue.Queue(_BACKLOG)
        self._lock = threading.Lock()
        self._pid = 0
        self._paused_until = 0.0

    def put(self, message: Message) -> None:
        """Take a message; one too many is dropped, its row stays."""
        if self._pid != os.getpid():
            self._start()
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            log.warning("the hand-over is full; %s waits for the drain", message.dedupe_key)

    def _start(self) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._queue = queue.Queue(_BACKLOG)
                threading.Thread(target=self._run, name="handover", daemon=True).start()
                self._pid = os.getpid()

    def _run(self) -> None:
        while True:
            message = self._queue.get()
            if monotonic() >= self._paused_until:
                self._send(message)

    def _send(self, message: Message) -> None:
        try:
            send(message)
        except Exception as error:  # noqa: BLE001 whatever the broker's client raises, the row is the truth
            self._paused_until = monotonic() + PAUSE
            log.warning("the broker did not take %s: %s", message.dedupe_key, error)


def send(message: Message) -> None:
    """Send one message now; raises whatever the broker's client raises."""
    from workers.celery import app  # noqa: PLC0415 Django's applications are loaded before Celery's

    route = ROUTES[message.topic]
    countdown = message.delay if message.delay > 0 else None
    if countdown is not None and countdown > COUNTDOWN_MAX:
        return
    app.send_task(route.task, args=route.args(message.payload), queue=route.queue, countdown=countdown)


_sender = Sender()


def install() -> None:
    """Make this process hand its commits' messages over."""
    HandOver.send = staticmethod(_sender.put)
