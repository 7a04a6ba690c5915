"""One pod of the local Driver: finding it again, starting it, ending it.

A reader may rely on:
  * ``find`` never mistakes another process for the pod; a pod that is no longer alive is still found, with what it was;
  * ``start`` returns once a supervisor has taken the pod over, not once the Engine answers; a start that fails leaves
    nothing behind;
  * ``end`` with ``then_kill``, and ``kill``, return only when nothing of the pod is left (see ``processes``).
The caller holds the name (``places.hold``) for everything but ``find`` and ``answers``.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import uuid
from dataclasses import dataclass
from typing import Any

from environments.compute import trust
from environments.compute.contract import SandboxSpec
from environments.compute.engine import wire
from environments.compute.local import backing, bwrap, host, image, limits
from environments.compute.local.errors import CannotStart
from environments.compute.local.kept import Shelf
from environments.compute.local.places import Place
from environments.compute.local.probe import usable_host
from environments.compute.local.processes import is_alive, marker, sweep

PIDS_MAX = 512
PING_SECONDS = 1.0
POLL_SECONDS = 0.01
LOG_TAIL = 500
GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True, slots=True)
class Pod:
    """What ``pod.json`` says of a pod, and whether it runs. ``phase`` is ``Pending`` until the Engine has a pid."""

    uid: str
    op_id: str
    address: str | None
    groups: tuple[str, ...]
    unenforced: tuple[str, ...]
    supervisor: tuple[int, int] | None
    phase: str
    alive: bool

    @property
    def socket(self) -> str:
        return (self.address or "").removeprefix("unix:")


def find(place: Place) -> Pod | None:
    """The pod last started under this name; ``None`` when there was none since its end was tidied up."""
    raw = place.read_pod()
    if raw is None:
        return None
    supervisor, engine = _process(raw.get("supervisor")), _process(raw.get("engine"))
    alive = supervisor is not None and is_alive(*supervisor) and (engine is None or is_alive(*engine))
    return Pod(
        uid=raw["podUid"],
        op_id=raw["opId"],
        address=raw.get("address"),
        groups=tuple(raw.get("groups", ())),
        unenforced=tuple(raw.get("unenforced", ())),
        supervisor=supervisor,
        phase="Pending" if engine is None else "Running",
        alive=alive,
    )


def _process(raw: dict[str, Any] | None) -> tuple[int, int] | None:
    return None if raw is None else (raw["pid"], raw["startTime"])


def answers(pod: Pod) -> bool:
    """Whether the Engine answers a ping within ``PING_SECONDS``."""
    header = {"v": wire.VERSION, "op": "ping", "call": "ping", "epoch": None, "args": {}}
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PING_SECONDS)
        try:
            sock.connect(pod.socket)
            sock.sendall(wire.encode_json(wire.HEADER, header) + wire.encode(wire.END))
            frame = wire.read_frame(sock)
        except (OSError, wire.ProtocolError):
            return False
    return frame is not None and frame[0] == wire.ACCEPTED


# ---------------------------------------------------------------------------------------------------- the end


def end(place: Place, pod: Pod | None, *, within: float, then_kill: bool = False) -> None:
    """Ask a living pod to end and wait for it. One that outlives ``within`` seconds is left to its supervisor, which
    kills it after its grace, or killed here (``then_kill``). One whose supervisor is dead is killed at once."""
    if pod is None:
        return
    if pod.supervisor is not None and is_alive(*pod.supervisor):
        _ask_to_end(pod.supervisor[0])
        if not _ends(pod.supervisor, within) and not then_kill:
            return
    kill(place, pod)


def _ask_to_end(supervisor: int) -> None:
    try:
        os.kill(supervisor, signal.SIGTERM)
    except ProcessLookupError:
        return


def _ends(process: tuple[int, int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(*process):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)  # noqa: TID251 - the kernel tells nobody when a process that is no child has gone
    return True


def kill(place: Place, pod: Pod | None) -> None:
    """Leave nothing of the pod: no process, no cgroup, no mount, no socket, no note of it."""
    if pod is None:
        return
    sweep(marker(pod.uid), list(pod.groups))
    image.wait_released(place.image)
    place.socket.unlink(missing_ok=True)
    place.forget_pod()


# ---------------------------------------------------------------------------------------------------- the start


def start(place: Place, spec: SandboxSpec, *, renew_seconds: float) -> None:
    """Start a new pod on the volume of ``place``, made when it is missing; raises :class:`CannotStart`."""
    box_host = usable_host(place.root)
    storage = spec.storage_gib * GIB
    owner = {"installation": spec.installation, "uid": spec.uid}
    volume = backing.prepare(place, owner, storage, _kept(place, spec.seed))
    pod_uid = str(uuid.uuid4())
    caps = limits.Caps(spec.cpus, spec.memory_mib * MIB, PIDS_MAX)
    group, trees = f"nylorun-{spec.name}-{pod_uid[:8]}", limits.own_hierarchies()
    note = {"podUid": pod_uid, "opId": spec.op_id, "groups": limits.possible_folders(group, trees)}
    place.write_pod(note)  # before anything is made: who finds this note can undo whatever follows it
    groups = limits.make_groups(group, caps, trees)
    own_uid = volume.uid is not None
    held = groups.held | {"storage"} if volume.limited else groups.held
    loose = limits.unenforced(held, own_uid=own_uid)
    rlimits = limits.process_limits(caps, held, storage, own_uid=own_uid)
    plan = {
        **note,
        "groups": list(groups.folders),
        "unenforced": list(loose),
        "folder": str(place.folder),
        "socket": str(place.socket),
        "uid": volume.uid,
        "disk": volume.disk,
        "limits": list(rlimits.items()),
        "renewSeconds": renew_seconds,
        "egress": None if spec.network is None else spec.egress_url,
        "join": {
            "url": spec.engine_url,
            "environmentId": spec.environment_id,
            "podUid": pod_uid,
            "volumeId": place.volume_id(),
            "address": f"unix:{place.socket}",
        },
        **_sandbox(box_host, place, spec, pod_uid),
    }
    _supervise(place, plan)


def _kept(place: Place, key: str | None) -> backing.Kept | None:
    found = None if key is None else Shelf(place.root).path(key)
    return None if key is None or found is None else backing.Kept(key, found)


def _sandbox(box_host: bwrap.Host, place: Place, spec: SandboxSpec, pod_uid: str) -> dict[str, Any]:
    box = bwrap.Box(
        hostname=spec.name,
        workspace=str(place.workspace),
        harness=str(place.harness),
        memory=spec.memory_mib * MIB,
        processes=PIDS_MAX,
        marker=marker(pod_uid),
        env=spec.env,
        trusted=None if spec.network is None else trust.certificates() + spec.egress_ca.encode("ascii"),
    )
    return host.as_plan(box_host, box, bwrap.command(box_host, box))


def _supervise(place: Place, plan: dict[str, Any]) -> None:
    try:
        result = host.run_code("environments.compute.local.supervisor", plan, marker(plan["podUid"]), place.name)
    except BaseException:
        kill(place, find(place))
        raise
    if result.returncode != 0:
        log = f"{result.stderr} {place.read_log(LOG_TAIL)}".strip()
        kill(place, find(place))
        raise CannotStart(f"the supervisor of {place.name} did not start: {log}")
