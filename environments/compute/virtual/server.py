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
import signal
import socket
import sys
import threading
import time
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
SPARE_THREADS = 4
TAKEN, LOST = 75, 70


class Threads:
    """Threads that take connections: always ``SPARE_THREADS`` that wait, however many are busy."""

    def __init__(self, listener: socket.socket, reception: Reception) -> None:
        self._listener = listener
        self._reception = reception
        self._waiting = 0
        self._busy = 0
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)

    def keep_ready(self) -> None:
        """Start what is missing to ``SPARE_THREADS``."""
        with self._lock:
            missing = SPARE_THREADS - self._waiting
            self._waiting += max(0, missing)
        for _ in range(missing):
            threading.Thread(target=self._take, name="calls", daemon=True).start()

    def _take(self) -> None:
        while self._next():
            if self._enough():
                return

    def _next(self) -> bool:
        """Serve one connection; ``False`` when there will be no more."""
        try:
            client, _ = self._listener.accept()
        except OSError:
            return False
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
        return True

    def _enough(self) -> bool:
        """Whether this thread is one too many; if not it waits again."""
        with self._lock:
            if self._waiting >= SPARE_THREADS:
                return True
            self._waiting += 1
            return False

    def drain(self, seconds: float) -> None:
        """Take no more connections; give those that are served ``seconds`` to end."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._quiet:
            self._quiet.wait_for(lambda: self._busy == 0, timeout=seconds)


def main() -> int:
    """Start, serve until TERM or until the zygote is lost; gives the exit status."""
    chosen = _arguments()
    root = _open_root(chosen.root, chosen.user)
    if not _only_one(root):
        print("another virtual Engine serves this folder", file=sys.stderr)  # noqa: T201 - said to whoever starts it
        return TAKEN
    listener = _listen(chosen.socket)
    ending = threading.Event()
    lost = threading.Event()

    def end_lost() -> None:
        lost.set()
        ending.set()

    as_root = os.geteuid() == 0
    hatchery = Hatchery(root, chosen.user if as_root else None, end_lost)
    cage.become(chosen.user, keep_chroot=False)
    cage.set_dumpable(False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    folders = Folders(root)
    pool = Pool(hatchery, folders, most=chosen.processes)
    threads = Threads(
        listener, Reception(pool, folders, memory_most_mib=chosen.memory_mib, confined=_confined(as_root))
    )
    threading.Thread(target=folders.sweep, name="sweep", daemon=True).start()
    threads.keep_ready()
    hatchery.wait_until_ready(READY_SECONDS)
    print("ready", flush=True)  # noqa: T201 - the sign for whoever started it
    _serve(ending, pool, chosen.idle)
    status = LOST if lost.is_set() else 0
    threads.drain(0.0 if status else DRAIN_SECONDS)
    hatchery.close()
    return status


def _serve(ending: threading.Event, pool: Pool, idle: float) -> None:
    while not ending.wait(min(30.0, max(0.05, idle / 4))):
        pool.close_idle(idle)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="virtual-engine", description="Serve virtual workspaces on a Unix socket.")
    parser.add_argument("--socket", type=Path, required=True, help="where to listen")
    parser.add_argument("--root", type=Path, required=True, help="folder of the workspaces")
    parser.add_argument("--user", type=int, default=USER_DEFAULT, help="uid and gid to run as when started as root")
    parser.add_argument("--idle", type=float, default=900.0, help="seconds after which an unused workspace is closed")
    parser.add_argument("--processes", type=int, default=256, help="most workspace processes at a time")
    parser.add_argument("--memory-mib", type=int, default=1024, help="most memory a call may ask for")
    return parser.parse_args()


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
    return {
        "confined": {
            "root": as_root,
            "landlock": landlock.version(),
            "calls": seccomp.program(0) is not None,
        },
        "at": int(time.time()),
    }


if __name__ == "__main__":
    sys.exit(main())
