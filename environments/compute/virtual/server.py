"""The virtual Engine: one process that serves the workspaces of all Environments of kind ``virtual``.

Run as ``python -m environments.compute.virtual.server --socket PATH --root DIR``. It speaks the Engine channel on a
Unix socket and keeps workspaces below ``DIR``, one folder per uid.

A reader may rely on:
  * it needs no database, no broker and no key, and reads no setting but its arguments;
  * started as root it runs as ``--user`` (and the group of that number), which then owns ``DIR``; the socket stays the
    starter's, mode 0600 in a folder made with mode 0700, so nothing that breaks out of a workspace reaches it;
  * one server per ``DIR``: a second one does not start (exit status 75);
  * TERM ends it within ``DRAIN_SECONDS``: calls that end meanwhile are answered, the others are interrupted;
  * it says ``ready`` on standard output when it takes calls, and which confinements hold in the answer to ``ping``.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from environments.compute.virtual import cage, landlock, seccomp
from environments.compute.virtual.folders import Folders
from environments.compute.virtual.hatchery import Hatchery
from environments.compute.virtual.pool import Pool
from environments.compute.virtual.reception import Reception

DRAIN_SECONDS = 2.0
READY_SECONDS = 30.0
USER_DEFAULT = 65533
SPARE_THREADS, MOST_THREADS = 4, 1000
RETRY_SECONDS = 0.05
TAKEN, LOST = 75, 70


class Threads:
    """Threads that take connections: always ``SPARE_THREADS`` that wait, up to ``MOST_THREADS`` in all."""

    def __init__(self, listener: socket.socket, reception: Reception) -> None:
        self._listener = listener
        self._reception = reception
        self._waiting = 0
        self._busy = 0
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._closing = threading.Event()

    def keep_ready(self) -> None:
        """Start what is missing to ``SPARE_THREADS``; at ``MOST_THREADS`` callers wait to be taken."""
        with self._lock:
            missing = max(0, min(SPARE_THREADS - self._waiting, MOST_THREADS - self._waiting - self._busy))
            self._waiting += missing
        for _ in range(missing):
            threading.Thread(target=self._take, name="calls", daemon=True).start()

    def _take(self) -> None:
        while self._next():
            pass

    def _next(self) -> bool:
        """Serve one connection; ``False`` when there will be no more, or enough other threads wait."""
        try:
            client, _ = self._listener.accept()
        except OSError:  # the end, or no handle left for another connection
            return not self._closing.wait(RETRY_SECONDS)
        with self._lock:
            self._waiting -= 1
            self._busy += 1
            short = self._waiting == 0
        if short:
            self.keep_ready()
        try:
            self._reception.serve(client)
        finally:
            with self._quiet:
                self._busy -= 1
                self._quiet.notify_all()
        return not self._enough()

    def _enough(self) -> bool:
        """Whether this thread is one too many; if not it counts as waiting again."""
        with self._lock:
            if self._waiting >= SPARE_THREADS:
                return True
            self._waiting += 1
            return False

    def drain(self, seconds: float) -> None:
        """Take no more connections; give those that are served ``seconds`` to end."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._quiet:
            self._quiet.wait_for(lambda: self._busy == 0, timeout=seconds)


class Ending:
    """Why and when the server ends."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.lost = False

    def ask(self, *_: object) -> None:
        self.asked.set()

    def lose(self) -> None:
        """The zygote is gone: nothing can be served any more."""
        self.lost = True
        self.asked.set()


def main() -> int:
    """Start, serve until TERM or until the zygote is lost; gives the exit status."""
    chosen = _arguments()
    root = _open_root(chosen.root, chosen.user)
    if not _only_one(root):
        return _complain("another virtual Engine serves this folder", TAKEN)
    listener = _listen(chosen.socket)
    _raise_handle_limit()
    as_root, ending = os.geteuid() == 0, Ending()
    hatchery = Hatchery(root, chosen.user, ending.lose)
    cage.become(chosen.user, keep_chroot=False)
    cage.set_dumpable(False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ending.ask)
    try:
        if not hatchery.wait_until_ready(READY_SECONDS):
            return _complain("the zygote does not start", LOST)
        _serve(chosen, hatchery, Folders(root), listener, ending, _confined(as_root))
        return LOST if ending.lost else 0
    finally:
        hatchery.close()


def _serve(
    chosen: argparse.Namespace,
    hatchery: Hatchery,
    folders: Folders,
    listener: socket.socket,
    ending: Ending,
    confined: dict[str, Any],
) -> None:
    pool = Pool(hatchery, folders, most=chosen.processes)
    threads = Threads(listener, Reception(pool, folders, memory_most_mib=chosen.memory_mib, confined=confined))
    threading.Thread(target=folders.sweep, args=(folders.leftovers(),), name="sweep", daemon=True).start()
    threads.keep_ready()
    print("ready", flush=True)  # noqa: T201 - the sign for whoever started it
    while not ending.asked.wait(min(30.0, max(0.05, chosen.idle / 4))):
        pool.close_idle(chosen.idle)
    threads.drain(0.0 if ending.lost else DRAIN_SECONDS)


def _complain(words: str, status: int = 0) -> int:
    print(words, file=sys.stderr, flush=True)  # noqa: T201 - to whoever started it
    return status


def _raise_handle_limit() -> None:
    """A connection and a process take a handle or two each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="virtual-engine", description="Serve virtual workspaces on a Unix socket.")
    parser.add_argument("--socket", type=Path, required=True, help="where to listen")
    parser.add_argument("--root", type=Path, required=True, help="folder of the workspaces")
    parser.add_argument(
        "--user", type=_not_root, default=USER_DEFAULT, help="uid and gid to run as when started as root"
    )
    parser.add_argument("--idle", type=float, default=900.0, help="seconds after which an unused workspace is closed")
    parser.add_argument("--processes", type=int, default=256, help="most workspace processes at a time")
    parser.add_argument("--memory-mib", type=int, default=1024, help="most memory a call may ask for")
    return parser.parse_args()


def _not_root(text: str) -> int:
    if int(text) <= 0:
        raise ValueError("root is no user to run as")
    return int(text)


def _open_root(path: Path, user: int) -> int:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if os.geteuid() == 0 and os.fstat(root).st_uid != user:
        os.fchown(root, user, user)
    os.fchmod(root, 0o700)
    return root


def _only_one(root: int) -> bool:
    lock = os.open(".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=root)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _listen(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(512)
    return listener


def _confined(as_root: bool) -> dict[str, Any]:
    confined = {"root": as_root, "landlock": landlock.version(), "calls": seccomp.program(0) is not None}
    if not (confined["landlock"] and confined["calls"]):
        _complain("this kernel has no Landlock, or this machine no known call filter: workspaces are less confined")
    return {"confined": confined}


if __name__ == "__main__":
    sys.exit(main())
