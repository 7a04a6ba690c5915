"""Operation ``setup``: input files first, then each command in order, before any call runs on a new disk.

A worker that dies is followed by another, which starts again from the files; the Engine ended what the dead one ran,
since a call lives as long as its connection.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from environments.compute.channel import EngineChannel, run_bash
from environments.compute.contract import Answer, Interrupted, NotAccepted
from environments.services import operations
from environments.services.operations import CommandFailed, Setup
from environments.tools.files import write_input_files
from environments.tools.serve import channel_of
from nylorun.db.tx import transact
from nylorun.http.waiting import release
from nylorun.kernel.clock import pause
from nylorun.record import outbox

RENEW_SECONDS = 30.0
COMMAND_MS = 15 * 60 * 1000


class LeaseLost(Exception):
    """Another attempt has the lease now: this one stops and writes nothing."""


def run_operation(operation_id: str) -> None:
    """Run one attempt, if it is this worker's to run."""
    key = f"{operations.TOPIC}:{operation_id}"
    posts = outbox.posts_of(key)
    setup = operations.start(operation_id)
    if setup is not None:
        try:
            _run(setup)
        except (NotAccepted, Interrupted):
            operations.put_back(setup)
        except LeaseLost:
            return
    transact(lambda tx: outbox.settle(tx, key, posts))


def _run(setup: Setup) -> None:
    channel = channel_of(setup.workplace)
    lost = threading.Event()
    release()
    with _renewed(setup, lost):
        failure = _files(channel, setup) or _commands(channel, setup, lost)
    if lost.is_set():
        raise LeaseLost
    if failure is None:
        operations.succeed(setup)
    else:
        operations.fail_setup(setup, failure)


def _files(channel: EngineChannel, setup: Setup) -> CommandFailed | None:
    failed = write_input_files(channel, setup.workplace, f"{setup.operation_id}.{setup.attempt}.0", setup.files)
    return None if failed is None else CommandFailed(0, 1, failed.message or "")


def _commands(channel: EngineChannel, setup: Setup, lost: threading.Event) -> CommandFailed | None:
    for number, command in enumerate(setup.commands, start=1):
        answer = run_bash(
            channel,
            command,
            timeout_ms=COMMAND_MS,
            call_id=f"{setup.operation_id}.{setup.attempt}.{number}",
            epoch=setup.workplace.epoch,
            cancel=lost,
        )
        if lost.is_set():
            return None
        failure = _failure(number, answer)
        if failure is not None:
            return failure
    return None


def _failure(number: int, answer: Answer) -> CommandFailed | None:
    if answer.kind == "failed":
        return CommandFailed(number, 126, answer.message or "")
    output = answer.output or {}
    code = output.get("exitCode")
    if code == 0:
        return None
    tail = f"{output.get('stdout', '')}{output.get('stderr', '')}"
    return CommandFailed(number, code if isinstance(code, int) else 126, tail)


@contextmanager
def _renewed(setup: Setup, lost: threading.Event) -> Iterator[None]:
    """Renew the lease from another thread while the block runs; ``lost`` is set when it is not ours any more."""
    over = threading.Event()

    def renew() -> None:
        while not pause(RENEW_SECONDS, over):
            try:
                if not operations.renew(setup):
                    lost.set()
                    return
            finally:
                release()

    thread = threading.Thread(target=renew, name=f"lease-{setup.operation_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
