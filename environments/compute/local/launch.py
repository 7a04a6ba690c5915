"""Carrying out a plan: opens its handles, enters its cgroups and limits, becomes its user, and runs bubblewrap.

A plan is a JSON object that the Driver makes (``host.as_plan`` and ``pods.start``):
``{argv, tail, program, libraries, uid, disk, groups, limits}``. ``argv`` are bubblewrap's options, in which
``{"data"}`` (latin-1 text) stands for the number of a handle and ``{"folder"}`` for a path; ``tail`` is what runs in
the sandbox. ``disk`` is ``{image, at}``: a disk image and the folder over which it is mounted first, or nothing.

A reader may rely on:
  * nothing of the caller is inherited but those handles, ``/dev/null`` as standard input and the log's pipe; all
    options go through a handle too, so a pod's environment is not seen in the list of processes;
  * limits and user are in force before the first instruction of bubblewrap; when any step fails, nothing is run;
  * with an outside user of its own, folders are bound to short paths in a mount namespace of its own first: that user
    has no way through the data folder, and bubblewrap resolves even handles by their path. A disk image is mounted
    there too, and goes with the last process of the pod.

Standard library only, and of that only what starts fast: the supervisor loads this file.
"""

from __future__ import annotations

import os
import resource
import select
import sys

from environments.compute.engine import jsonc, libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

INFO_MAX = 4096
LISTENING = 100  # bwrap.LISTENING, which is not loaded here
STAGE = "/tmp"  # noqa: S108 - any folder that every host has: it is covered in our mount namespace alone
CLONE_NEWNS = 0x20000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000


class Launched:
    """A running bubblewrap: its pid, a pidfd of it, and our ends of its information and log pipes."""

    __slots__ = ("handle", "info", "log", "pid")

    def __init__(self, pid: int, info: int, log: int) -> None:
        self.pid = pid
        self.handle = os.pidfd_open(pid)
        self.info = info
        self.log = log

    def read_child(self, wake: int) -> int | None:
        """Wait until bubblewrap tells the pid of the Engine; ``None`` when it ended, or ``wake`` is readable, before.

        It writes in pieces. A child of it that hangs holds the pipe open, so the end of bubblewrap itself counts.
        """
        poll = select.poll()
        for handle in (self.info, self.handle, wake):
            poll.register(handle, select.POLLIN)
        text = b""
        while b"}" not in text and len(text) < INFO_MAX:
            if self.info not in dict(poll.poll()):
                break
            piece = os.read(self.info, INFO_MAX)
            if not piece:
                break
            text += piece
        os.close(self.info)
        try:
            return int(jsonc.loads(text)["child-pid"])
        except (ValueError, KeyError):
            return None


def launch(plan: dict[str, Any], listening: int) -> Launched:
    """Start the plan; what runs in it has the handle ``listening`` as number ``LISTENING``. Raises ``OSError``."""
    info, info_theirs = os.pipe()
    log, log_theirs = os.pipe()
    command = Command(plan, info_theirs)
    try:
        pid = os.fork()
        if pid == 0:
            os.dup2(log_theirs, 1)
            os.dup2(log_theirs, 2)
            os.dup2(listening, LISTENING)
            _become(plan, command)
    finally:
        command.close()
        os.close(info_theirs)
        os.close(log_theirs)
    return Launched(pid, info, log)


class Command:
    """The command line of a plan, the handles it needs, and the folders it wants staged."""

    def __init__(self, plan: dict[str, Any], info: int) -> None:
        self._stages = plan["uid"] is not None
        self._held: list[int] = []
        self.inherited = [info]
        self.folders: list[str] = []
        self.env: dict[str, str] = {}
        self.program = os.open(plan["program"], os.O_PATH | os.O_CLOEXEC)
        if plan["libraries"]:
            self.env["LD_LIBRARY_PATH"] = self._folder(plan["libraries"])
        words = [self._word(word) for word in plan["argv"]] + ["--info-fd", str(info)]
        packed = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
        self.argv = ["bwrap", "--args", str(self._data(packed)), "--", *plan["tail"]]

    def close(self) -> None:
        for handle in (*self._held, self.program):
            os.close(handle)

    def _word(self, word: Any) -> str:
        if isinstance(word, str):
            return word
        return self._folder(word["folder"]) if "folder" in word else str(self._data(word["data"].encode("latin-1")))

    def _folder(self, path: str) -> str:
        """The path at which the outside user finds the folder ``path``."""
        if not self._stages:
            return path
        self.folders.append(path)
        return f"{STAGE}/{len(self.folders) - 1}"

    def _data(self, data: bytes) -> int:
        """A handle from which ``data`` is read; of any size, so not a pipe."""
        handle = os.memfd_create("nylorun")
        os.write(handle, data)
        os.lseek(handle, 0, os.SEEK_SET)
        self._held.append(handle)
        self.inherited.append(handle)
        return handle


def _become(plan: dict[str, Any], command: Command) -> NoReturn:
    """In the forked child: turn into bubblewrap."""
    try:
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        for handle in command.inherited:
            os.set_inheritable(handle, True)
        os.umask(0o022)
        _enter_groups(plan["groups"])
        _limit(plan["limits"])
        if plan["uid"] is not None:
            _stage(command.folders, plan["disk"])
            _become_user(plan["uid"])
        os.chdir("/")
        os.execve(command.program, command.argv, command.env)  # noqa: S606 - a fixed program, and no shell is wanted
    except BaseException as error:  # noqa: BLE001 - a forked child must not go on as its parent
        os.write(2, f"bubblewrap was not started: {error}\n".encode())
    os._exit(126)


def _enter_groups(groups: list[str]) -> None:
    for group in groups:
        with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")


def _limit(limits: list[list[int]]) -> None:
    for number, value in limits:
        _, hard = resource.getrlimit(number)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (most, most))


def _stage(folders: list[str], disk: dict[str, str] | None) -> None:
    """Mount ``disk``, and bind ``folders`` to ``STAGE``/0, /1 and so on; seen by this process and its children only."""
    libc.call("unshare", CLONE_NEWNS)
    libc.call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    if disk is not None:
        from environments.compute.local.disk import attach  # noqa: PLC0415 - only the child of a fork loads it

        attach(disk["image"], disk["at"])
    # Opened in the new namespace, whose mounts alone can be bound here, and before the stage may hide them.
    handles = [os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for folder in folders]
    libc.call("mount", b"tmpfs", STAGE.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=64k")
    for number, handle in enumerate(handles):
        path = f"{STAGE}/{number}"
        os.mkdir(path, 0o755)
        libc.call("mount", f"/proc/self/fd/{handle}".encode(), path.encode(), None, MS_BIND | MS_REC, None)


def _become_user(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main() -> None:
    """Run the plan on standard input once and end with its exit code, its output on standard error: for trying out."""
    plan = jsonc.loads(sys.stdin.buffer.read())
    launched = launch(plan, os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
    while text := os.read(launched.log, INFO_MAX):
        os.write(2, text)
    _, status = os.waitpid(launched.pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)
