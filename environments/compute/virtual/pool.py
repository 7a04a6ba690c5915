"""Which process serves which workspace: kept warm while in use, bounded in number, ended when idle.

A reader may rely on:
  * a process serves one workspace for all its life, one call at a time; calls of one workspace run side by side;
  * at most ``PER_WORKSPACE`` processes serve one workspace and ``most`` serve all; beyond that the workspace that was
    idle longest gives one up, and a caller waits ``QUEUE_SECONDS`` before it is refused with ``busy``;
  * a closed workspace keeps its files and nothing else; a dropped one is gone with its processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from os import close as close_handle

from environments.compute.engine.wire import Refused
from environments.compute.virtual import ledger
from environments.compute.virtual.folders import Folders
from environments.compute.virtual.hatchery import Hatchery, Process
from environments.compute.virtual.stages import Stages

PER_WORKSPACE = 16
IDLE_KEPT = 2
QUEUE_SECONDS = 10.0
DEATH_SECONDS = 5.0


class _Workspace:
    """What the server knows of one workspace in use; ``ledger`` is the handle of its shared page.

    ``closing``: what runs now shall not stay when it is done; the next call takes that back.
    """

    def __init__(self) -> None:
        self.ledger = ledger.make()
        self.busy: set[Process] = set()
        self.idle: list[Process] = []
        self.closing = False

    @property
    def processes(self) -> list[Process]:
        return [*self.busy, *self.idle]

    def free_slot(self) -> int:
        taken = {process.slot for process in self.processes}
        return next(slot for slot in range(ledger.SLOTS) if slot not in taken)


class Pool:
    """All processes of the server. Every method may be called by any thread."""

    def __init__(
        self, hatchery: Hatchery, folders: Folders, *, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hatchery = hatchery
        self._folders = folders
        self._most = most
        self._clock = clock
        self._workspaces: dict[str, _Workspace] = {}
        self._changed = threading.Condition()

    def acquire(self, uid: str, memory_mib: int, stage: str | None = None) -> Process:
        """A process for one call, on the workspace or on a stage that was begun.

        Raises ``Refused`` when there is no room, ``OSError`` when none can be made.
        """
        deadline = self._clock() + QUEUE_SECONDS
        with self._changed:
            while (process := self._take(uid, memory_mib, stage)) is None:
                remaining = deadline - self._clock()
                if remaining <= 0:
                    raise Refused("busy", "Too many calls run at the same time.")
                self._changed.wait(remaining)
            return process

    def _take(self, uid: str, memory_mib: int, stage: str | None) -> Process | None:
        workspace = self._workspaces.get(uid)
        if workspace is None:
            workspace = self._workspaces[uid] = _Workspace()
        workspace.closing = False
        while workspace.idle and stage is None:
            process = workspace.idle.pop()
            if process.memory_mib == memory_mib and process.waits:
                workspace.busy.add(process)
                return process
            self._end(process)
        if len(workspace.busy) >= PER_WORKSPACE or not self._room():
            return None
        slot = workspace.free_slot()
        if stage is None:
            process = self._hatchery.spawn(uid, memory_mib, slot, workspace.ledger)
        else:
            process = self._spawn_for_stage(uid, memory_mib, slot, stage)
        workspace.busy.add(process)
        return process

    def _spawn_for_stage(self, uid: str, memory_mib: int, slot: int, stage: str) -> Process:
        """A stage is counted by itself: what it holds is not in the workspace yet."""
        page = ledger.make()
        try:
            return self._hatchery.spawn(uid, memory_mib, slot, page, stage)
        finally:
            close_handle(page)

    def _room(self) -> bool:
        """Whether one more process may be made, if need be in the place of the one idle longest."""
        if sum(len(workspace.processes) for workspace in self._workspaces.values()) < self._most:
            return True
        idle = [process for workspace in self._workspaces.values() for process in workspace.idle]
        if not idle:
            return False
        oldest = min(idle, key=lambda process: process.idle_since)
        self._workspaces[oldest.uid].idle.remove(oldest)
        self._end(oldest)
        return True

    def release(self, process: Process, *, again: bool) -> None:
        """A call is over; ``again`` says whether its process may serve another."""
        with self._changed:
            workspace = self._workspaces.get(process.uid)
            if workspace is not None:
                workspace.busy.discard(process)
            if workspace is not None and again and not workspace.closing and len(workspace.idle) < IDLE_KEPT:
                process.idle_since = self._clock()
                workspace.idle.append(process)
            else:
                self._end(process)
                if workspace is not None:
                    ledger.let_go(workspace.ledger, process.slot)
            self._changed.notify_all()

    def kill(self, process: Process) -> None:
        """End a process in the middle of its call."""
        self._hatchery.kill(process)

    def close_idle(self, seconds: float) -> None:
        """Close the workspaces that nothing used for ``seconds``."""
        before = self._clock() - seconds
        with self._changed:
            for uid, workspace in list(self._workspaces.items()):
                for process in [process for process in workspace.idle if process.idle_since <= before]:
                    workspace.idle.remove(process)
                    self._end(process)
                if not workspace.processes:
                    self._forget(uid)

    def close(self, uid: str) -> None:
        """End what stands idle for a workspace, and what still runs when it is done."""
        with self._changed:
            workspace = self._workspaces.get(uid)
            if workspace is None:
                return
            workspace.closing = True
            while workspace.idle:
                self._end(workspace.idle.pop())
            if not workspace.busy:
                self._forget(uid)

    def drop(self, uid: str) -> bool:
        """End every process of a workspace and remove its folder and stages; ``False`` when there was no folder."""
        self._end_all(uid)
        self._folders.remove(Stages(self._folders).set_aside(uid))
        return self._folders.drop(uid)

    def swap(self, uid: str, stage: str) -> bool:
        """End every process of a workspace and put a stage in its place; ``False`` when that had happened already.

        Raises ``ToolError`` when there is no such whole stage, ``Refused`` when calls go on coming.
        """
        stages = Stages(self._folders)
        if stages.is_whole(uid, stage):
            self._end_all(uid)
        with self._changed:
            workspace = self._workspaces.get(uid)
            if workspace is not None and stages.is_whole(uid, stage):
                if not all(process.died.is_set() for process in workspace.processes):
                    raise Refused("busy", "Calls of this workspace run.")
                ledger.forget(workspace.ledger)
            swapped, left = stages.swap(uid, stage)
        threading.Thread(target=self._folders.sweep, args=(left,), name="sweep", daemon=True).start()
        return swapped

    def _end_all(self, uid: str) -> None:
        """End every process of a workspace, whatever it does."""
        with self._changed:
            workspace = self._workspaces.get(uid)
            doomed = workspace.processes if workspace is not None else []
            if workspace is not None:
                workspace.idle.clear()
            for process in doomed:
                self._hatchery.kill(process)
        for process in doomed:
            process.died.wait(DEATH_SECONDS)
        self.close(uid)

    def _end(self, process: Process) -> None:
        """Let a process go that runs nothing: it ends when its control socket does."""
        with suppress(OSError):
            process.control.close()

    def _forget(self, uid: str) -> None:
        close_handle(self._workspaces.pop(uid).ledger)
