"""The local Driver: pods as bubblewrap sandboxes of this host, each with a supervisor that outlives whoever started it.

A reader may rely on:
  * everything that is known stands in files beneath ``root`` (see ``places``): any process with that folder sees and
    does the same, and a name is changed by one of them at a time;
  * a pod is alive when its supervisor and its Engine are the very processes that were recorded (pid and start time);
  * ``apply`` never goes back: a lower rev than the object's changes nothing. A pod of an earlier rev is ended, with its
    grace, before one of the next is started on the same volume;
  * after ``delete``, and before a start, nothing of an earlier pod is left: no process, no cgroup, no socket;
  * objects and volumes of another installation, and objects of another uid, are never changed (``name_taken``).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments.compute.contract import Listing, NoAnswer, Readiness, SandboxSpec, SandboxStatus
from environments.compute.local import pods
from environments.compute.local.errors import CannotStart, NameTaken
from environments.compute.local.kept import Shelf
from environments.compute.local.owners import NoUidLeft
from environments.compute.local.places import Place, empty_trash, forget_lock, hold
from environments.compute.local.probe import probe
from environments.compute.local.processes import NotSwept
from environments.compute.local.reserve import room

LOG_TAIL = 500
SUSPEND_WAIT = 1.0
REPLACE_OVERTIME = 2.0
RENEW_SECONDS = 300.0
UNKNOWN = "unknown"
"""The uid of a volume whose owner cannot be read: nobody's, so nobody adopts it."""


class LocalDriver:
    """The Driver ``local`` over the folder ``root`` (``<data>/pods``) for the installation of id ``installation``."""

    def __init__(self, root: Path, installation: str, *, renew_seconds: float = RENEW_SECONDS) -> None:
        self._root = root.absolute()
        self._installation = installation
        self._renew_seconds = renew_seconds
        self.keeps = Shelf(self._root)

    def readiness(self) -> Readiness:
        """Whether a sandbox starts here. Asked of the host once; a "no" is asked again after a few seconds."""
        return probe(self._root)

    # ------------------------------------------------------------------------------------------------ apply

    def apply(self, spec: SandboxSpec) -> None:
        """See the contract. Waits for an earlier pod's grace when it must be replaced, and not for the new one."""
        place = Place(self._root, spec.name)
        with _answers(), room(self._root), hold(self._root, spec.name):
            current = place.read_object()
            self._require_ours(place, current, spec.uid)
            if current is not None and rev(current["opId"]) > rev(spec.op_id):
                return
            place.make_folders()
            if spec.join_token is not None:
                # Before the object: one without a token could never join, and its existence keeps a new token away.
                place.write_join(spec.join_token)
            if current is None or current["opId"] != spec.op_id:
                place.write_object(self._object(spec, current))
            self._follow(place, spec)

    def _follow(self, place: Place, spec: SandboxSpec) -> None:
        """Make the pod what the object says; the caller holds the name."""
        pod = pods.find(place)
        if spec.mode == "Suspended":
            pods.end(place, pod, within=SUSPEND_WAIT)
            return
        if pod is not None and pod.alive and pod.op_id == spec.op_id:
            return
        pods.end(place, pod, within=spec.grace_seconds + REPLACE_OVERTIME, then_kill=True)
        pods.start(place, spec, renew_seconds=self._renew_seconds)

    def _object(self, spec: SandboxSpec, current: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "opId": spec.op_id,
            "mode": spec.mode,
            "uid": spec.uid,
            "installation": spec.installation,
            "environmentId": spec.environment_id,
            "image": spec.image,
            "graceSeconds": spec.grace_seconds,
            "createdAt": time.time() if current is None else current.get("createdAt", time.time()),
        }

    def _require_ours(self, place: Place, current: dict[str, Any] | None, uid: str | None) -> None:
        """Leave alone what is not ours: another installation's name, or (to be changed) another uid's."""
        for owner in (current, place.volume_owner()):
            if owner and owner.get("installation", self._installation) != self._installation:
                raise NameTaken(f"{place.name} belongs to another installation")
            if owner and uid is not None and owner.get("uid", uid) != uid:
                raise NameTaken(f"{place.name} belongs to another Environment")

    # ------------------------------------------------------------------------------------------------ delete

    def delete(self, name: str, *, keep_volume: bool = False) -> None:
        """See the contract. The pod is killed: what it would save in a grace is removed anyway, or kept as it is."""
        place = Place(self._root, name)
        if not place.folder.is_dir():
            with _answers():
                empty_trash(self._root)
            return
        with _answers(), room(self._root), hold(self._root, name):
            self._require_ours(place, place.read_object(), None)
            pods.kill(place, pods.find(place))
            place.set_aside(keep_volume=keep_volume)
            if not place.folder.exists():
                forget_lock(self._root, name)
        with _answers():
            empty_trash(self._root)

    # ------------------------------------------------------------------------------------------------ reading

    def status(self, name: str) -> SandboxStatus:
        """See the contract. A few small files, two looks into ``/proc``, and one ping of the Engine."""
        with _answers():
            place = Place(self._root, name)
            volume_id = place.volume_id()
            found = place.read_object()
            if found is None or not place.has_join():
                return SandboxStatus(
                    name=name,
                    exists=False,
                    volume="present" if place.has_volume() else "missing",
                    volume_id=volume_id,
                    uid=place.volume_owner().get("uid", UNKNOWN) if place.has_volume() else None,
                )
            return self._status(place, found, volume_id)

    def _status(self, place: Place, found: dict[str, Any], volume_id: str | None) -> SandboxStatus:
        pod = pods.find(place)
        alive = pod is not None and pod.alive
        running = found["mode"] == "Running"
        current = pod is not None and pod.op_id == found["opId"]
        ready = pod is not None and alive and running and current and pods.answers(pod)
        reason, message = self._reason(place, found, pod)
        return SandboxStatus(
            name=place.name,
            exists=True,
            volume="present" if place.has_volume() else "missing",
            uid=found["uid"],
            mode=found["mode"],
            ready=ready,
            suspended=not running and not alive,
            pod_uid=pod.uid if pod is not None and alive else None,
            pod_phase=("Running" if ready else pod.phase) if pod is not None and alive else None,
            address=pod.address if pod is not None and alive else None,
            volume_id=volume_id,
            filled=place.volume_owner().get("filled"),
            op_id=found["opId"],
            unenforced=tuple(pod.unenforced) if pod is not None and alive else (),
            reason=reason,
            message=message,
        )

    def _reason(self, place: Place, found: dict[str, Any], pod: pods.Pod | None) -> tuple[str | None, str | None]:
        if found.get("installation") != self._installation:
            return "name_taken", f"{place.name} belongs to another installation."
        if pod is None or pod.alive or found["mode"] != "Running":
            return None, None
        ended = place.read_ended() or {}
        if ended.get("podUid") == pod.uid:
            return ended.get("reason"), ended.get("message")
        return "crash", place.read_log(LOG_TAIL) or "The pod ended by itself."

    def list(self) -> Listing:
        """See the contract. Also removes what an interrupted delete has left behind."""
        now = time.time()
        objects: dict[str, float] = {}
        volumes: dict[str, float] = {}
        with _answers():
            empty_trash(self._root)
            for name in _names(self._root):
                place = Place(self._root, name)
                found, owner = place.read_object(), place.volume_owner()
                if found is not None and found.get("installation") == self._installation:
                    objects[place.name] = max(0.0, now - float(found.get("createdAt", now)))
                if place.volume_id() is not None and owner.get("installation") == self._installation:
                    volumes[place.name] = max(0.0, now - (place.volume / "id").stat().st_mtime)
        return Listing(objects, volumes)


def _names(root: Path) -> Iterator[str]:
    if root.is_dir():
        with os.scandir(root) as entries:
            yield from (entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def rev(op_id: str) -> int:
    """The number in ``<name>.r<rev>``."""
    digits = op_id.rpartition(".r")[2]
    return int(digits) if digits.isdigit() else 0


@contextlib.contextmanager
def _answers() -> Iterator[None]:
    """What the host would not let us see or do is no answer, so that nobody concludes anything from it."""
    try:
        yield
    except (OSError, NotSwept, NoUidLeft, subprocess.TimeoutExpired, KeyError, TypeError, ValueError) as error:
        raise NoAnswer(f"the local driver failed: {error}") from error


__all__ = ["CannotStart", "LocalDriver", "NameTaken"]
