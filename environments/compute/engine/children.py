"""The processes of a pod, as PID 1 sees them: starting commands, reaping everything, signalling whole groups.

A reader may rely on:
  * every zombie is reaped, also orphans of ended commands; the status of a started :class:`Child` is not
    lost to that;
  * a started child leads a session and process group of its own and inherits the given streams and nothing else;
  * signals that Python ignores for itself have their default action again in the child.

Started with ``posix_spawn``: no copy of this process is made, and an error of ``exec`` is raised here.
"""

from __future__ import annotations

import errno
import os
from _thread import allocate_lock, start_new_thread

# The module `signal` turns its numbers into enums, which costs 6 ms at every start of an Engine.
SIGINT, SIGKILL, SIGPIPE, SIGTERM, SIGCONT, SIGSTOP, SIGXFSZ = 2, 9, 13, 15, 18, 19, 25
RESTORED = (SIGINT, SIGPIPE, SIGXFSZ)
COMMAND_OOM_SCORE = b"500"


class Child:
    """A started command. ``handle`` is a pidfd: readable once the command itself has ended."""

    __slots__ = ("_children", "handle", "pid")

    def __init__(self, children: Children, pid: int) -> None:
        self._children = children
        self.pid = pid
        self.handle = os.pidfd_open(pid)

    def exit_code(self) -> int:
        """Its exit code, or 128 + the signal that ended it; to be asked once, after ``handle`` became readable."""
        return self._children.take_exit_code(self.pid)

    def signal_group(self, number: int) -> bool:
        """Send ``number`` (0 only asks) to its process group; ``False`` when nobody is left in it."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill_session(self) -> None:
        """End its group, and groups that its shell made by job control."""
        self.signal_group(SIGKILL)
        for pid in _members_of_session(self.pid):
            _signal(pid, SIGKILL)

    def close(self) -> None:
        os.close(self.handle)


class Children:
    """All processes whose parent is this one. One thread reaps; ``start`` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._some = allocate_lock()
        self._some.acquire()
        self._watched: set[int] = set()
        self._ended: dict[int, int] = {}
        self.halted = False

    def reap_in_background(self) -> None:
        start_new_thread(self._reap_forever, ())

    def start(self, argv: list[str], env: dict[str, str], folder: int, streams: tuple[int, ...]) -> Child:
        """Run ``argv`` in ``folder`` with ``streams`` as its handles 0, 1, 2 and so on; raises ``OSError``."""
        actions = [(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)]
        with self._lock:
            if self.halted:
                raise OSError(errno.EBUSY, "all processes stand still")
            # posix_spawn has no folder of its own to start in. Nothing else here uses the working folder, and the
            # lock makes these three steps one.
            os.fchdir(folder)
            try:
                pid = os.posix_spawn(
                    argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=RESTORED
                )
            finally:
                os.chdir("/")
            self._watched.add(pid)
            child = Child(self, pid)
        if self._some.locked():
            self._some.release()
        _prefer_as_victim(pid)
        return child

    def halt(self) -> bool:
        """Stop every process of the pod but this one, and start none until ``go_on``; ``False``: that is so already.

        The lock keeps one out that ``start`` is making: it holds up this process until it has become another program.
        """
        with self._lock:
            if self.halted or os.getpid() != 1:  # on a host, everybody would be the host
                return False
            self.halted = True
            signal_everybody(SIGSTOP)
        return True

    def go_on(self) -> None:
        """Processes may be started again."""
        self.halted = False

    def take_exit_code(self, pid: int) -> int:
        with self._lock:
            self._watched.discard(pid)
            status = self._ended.pop(pid, None)
            if status is None:
                _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def _reap_forever(self) -> None:
        while True:
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                # No child, so no process at all: every other one descends from a child of PID 1. Wait for a start.
                self._some.acquire()
                continue
            with self._lock:
                while self._reap_one():
                    pass

    def _reap_one(self) -> bool:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid in self._watched:
            self._ended[pid] = status
        return pid != 0


def signal_everybody(number: int) -> bool:
    """Send ``number`` to every process of the pod but this one; ``False`` when there is none."""
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return False
    return True


def _prefer_as_victim(pid: int) -> None:
    """When memory runs out the kernel shall end commands, not the Engine that reports it."""
    try:
        handle = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(handle, COMMAND_OOM_SCORE)
        finally:
            os.close(handle)
    except OSError:  # it has ended already, or the host does not let its score be raised
        return


def _members_of_session(session: int) -> list[int]:
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit() and _session_of(int(name)) == session:
            members.append(int(name))
    return members


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return
