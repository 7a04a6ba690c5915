"""``tree.hold``: every process of the pod but this one stands still while a disk is read, so that it is of one moment.

A reader may rely on:
  * a fork cannot escape: the kernel signals all processes at once, and none is started by the Engine meanwhile. One
    that is inside the kernel stops on its way out; the hold is in force when all have stopped, or ``SETTLE_SECONDS``
    are over;
  * what was written is on the disk when the hold is in force. A store through a mapping (``mmap``) changes no time
    stamp while its page is dirty already: a copy that met such a page would take the file for unchanged ever after.
    Written out, the page is read-only again, and the next store to it is seen;
  * the hold ends at ``K``, when its connection ends, and when its client is silent for longer than it promised. Then
    all go on, the youngest first, so that no shell sees its children stopped; what had been stopped before stays so;
  * when this process dies, the pod ends.
"""

from __future__ import annotations

import os
import time

from environments.compute.engine import libc, wire
from environments.compute.engine.children import SIGCONT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

    from environments.compute.engine.children import Children

SETTLE_SECONDS = 2.0
POLL = 0.002
STANDING = frozenset("TtZXx")


def serve(sock: socket, children: Children, disk: int, patience: float) -> dict[str, Any] | None:
    """Hold until the client says that it is enough, or nothing for ``patience`` seconds; ``disk`` is a handle of it.

    Gives the ``R`` value, ``None`` when nobody waits for it.
    """
    libc.call("syncfs", disk)  # most of it while everybody still runs, so that they stand still for less
    before = {pid for pid in processes() if _stands(pid)}
    if not children.halt():
        return wire.failed("tool.failed", "The processes stand still already, or are none of this Engine's.")
    try:
        count, settled = _settle()
        libc.call("syncfs", disk)
        wire.write_json(sock, wire.DATA, {"processes": count, "settled": settled})
        sock.settimeout(patience)
        return _wait(sock)
    finally:
        sock.settimeout(None)
        for pid in sorted(processes() - before, reverse=True):
            _signal(pid, SIGCONT)
        children.go_on()


def _wait(sock: socket) -> dict[str, Any] | None:
    try:
        while (frame := wire.read_frame(sock)) is not None:
            if frame[0] == wire.KILL:
                return wire.completed({})
    except TimeoutError:
        return wire.failed("tool.interrupted", "The client was silent for too long.")
    except OSError:
        return None
    return None


def _settle() -> tuple[int, bool]:
    """Wait until everybody has stopped; how many there are, and whether all did."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found = processes()
        if all(map(_stands, found)):
            return len(found), True
        if time.monotonic() >= deadline:
            return len(found), False
        time.sleep(POLL)  # noqa: TID251 - nothing tells when a process stops that is no child


def processes() -> set[int]:
    """Every process of the pod but this one."""
    own = os.getpid()
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own}


def _stands(pid: int) -> bool:
    """Whether no thread of a process runs."""
    try:
        return all(_state(f"/proc/{pid}/task/{thread}/stat") in STANDING for thread in os.listdir(f"/proc/{pid}/task"))
    except OSError:  # it has ended
        return True


def _state(path: str) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, 512).rpartition(b") ")[2][:1].decode("ascii")
    finally:
        os.close(handle)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # it has ended
        return
