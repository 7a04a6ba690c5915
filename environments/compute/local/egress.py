"""The way out of a pod: a listener on the pod's own loopback, served by its supervisor, which leads to the egress gate.

A reader may rely on:
  * the listener is made in the pod's network namespace, the connections to the gate in the host's: nothing inside can
    reach anything but the gate, and the egress token never enters the pod;
  * what is served of a connection, and how many at once, is said in ``forwarding``.

Standard library only, and of that only what starts fast: the supervisor loads this file.
"""

from __future__ import annotations

import _socket
import os

from environments.compute.engine import libc
from environments.compute.wayout import PORT

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
BACKLOG = 128


def listen(pid: int) -> _socket.socket:
    """A listener on port ``PORT`` of the loopback that the process ``pid`` has. Raises ``OSError``."""
    ours, theirs = _socket.socketpair()
    child = os.fork()
    if child == 0:
        _listen_there(pid, _socket.socket(fileno=theirs.detach()))
    theirs.close()
    try:
        _, ancillary, _, _ = ours.recvmsg(1, _socket.CMSG_SPACE(4))
    finally:
        ours.close()
        os.waitpid(child, 0)
    for level, kind, data in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            listener = _socket.socket(fileno=int.from_bytes(data[:4], "little"))
            os.set_inheritable(listener.fileno(), False)
            return listener
    raise OSError("the pod's network could not be entered")


def _listen_there(pid: int, answer: _socket.socket) -> None:
    """In a process of its own, which enters the pod's network for this alone."""
    try:
        user = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        if os.geteuid() != 0:
            libc.call("setns", user, CLONE_NEWUSER)
        libc.call("setns", network, CLONE_NEWNET)
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.bind(("", PORT))  # the pod has no device but its loopback, which may not be up yet
        listener.listen(BACKLOG)
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, listener.fileno().to_bytes(4, "little"))
        answer.sendmsg([b"k"], [rights])
    finally:
        os._exit(0)
