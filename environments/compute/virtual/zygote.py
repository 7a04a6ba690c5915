"""The warm process from which workspace processes are forked: everything is loaded, and it has seen no call.

Run as ``python -m environments.compute.virtual.zygote --root FD --orders FD --user UID``. Orders come as messages
on a socket, one JSON object each: ``{"spawn": id}`` with one handle, the new process's control socket, on which it
hears what it is for (see ``worker``), and ``{"kill": id}``. It reports ``{"ready": true}`` once and ``{"dead": id,
"status": n}``, ``status`` as ``waitpid`` gives it (-1: it could not be made).

A reader may rely on:
  * its memory holds no command, no variable and no file of any workspace, so none can be read in what is forked from
    it;
  * only processes that it made and that are not yet waited for are killed, so a number used again is never hit;
  * when the socket ends, or this process, all that it made end as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass

from environments.compute.virtual import cage, worker
from environments.compute.virtual.folders import Folders

ORDER_BYTES = 4096


@dataclass(slots=True)
class Zygote:
    """The loop: take orders, fork, report deaths."""

    orders: socket.socket
    folders: Folders
    wake: int
    living: dict[int, int]

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.orders, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        self._say({"ready": True})
        while True:
            ready = dict(poll.poll())
            if self.wake in ready:
                os.read(self.wake, 4096)
                self._reap()
            if self.orders.fileno() in ready and not self._take_order():
                return

    def _take_order(self) -> bool:
        text, handles, _, _ = socket.recv_fds(self.orders, ORDER_BYTES, 2)
        if not text:
            return False
        order = json.loads(text)
        if "spawn" in order:
            self._spawn(int(order["spawn"]), handles[0])
        elif "kill" in order and (pid := self._pid_of(order["kill"])) is not None:
            os.kill(pid, signal.SIGKILL)
        return True

    def _pid_of(self, number: int) -> int | None:
        return next((pid for pid, known in self.living.items() if known == number), None)

    def _spawn(self, number: int, control: int) -> None:
        try:
            pid = os.fork()
        except OSError:
            self._report(number, -1)
        else:
            if pid == 0:
                self._become_worker(control)
            self.living[pid] = number
        os.close(control)

    def _become_worker(self, control: int) -> None:
        """The child: never returns."""
        status = worker.BROKEN
        try:
            cage.die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.orders.close()
            worker.main(socket.socket(fileno=control), self.folders)
            status = 0
        except MemoryError:
            os.abort()
        except Exception as error:  # noqa: BLE001 - the last words of a process that has no other place for them
            sys.stderr.write(f"workspace process: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if (number := self.living.pop(pid, None)) is not None:
                    self._report(number, status)

    def _report(self, number: int, status: int) -> None:
        self._say({"dead": number, "status": status})

    def _say(self, report: dict[str, int]) -> None:
        self.orders.send(json.dumps(report).encode())


def main() -> None:
    """Load everything, give up rights, serve until the socket ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=int, required=True)
    parser.add_argument("--orders", type=int, required=True)
    parser.add_argument("--user", type=int, required=True)
    chosen = parser.parse_args()
    cage.die_with_parent()
    worker.load()  # first: another user may not be able to read the interpreter's files
    gc.collect()
    gc.freeze()
    cage.become(chosen.user, keep_chroot=True)
    cage.die_with_parent()  # the kernel forgets it when the user changes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    Zygote(socket.socket(fileno=chosen.orders), Folders(chosen.root), reader, {}).run()


if __name__ == "__main__":
    main()
