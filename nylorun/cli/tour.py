"""The steps of the tour, in order. Each asks the API for something, checks the answer, and tells what it saw."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nylorun.cli.client import Client, environment_path

WAIT_SECONDS = 60.0
MANIFEST = {
    "kind": "pod",
    "resources": {"cpus": 1, "memory": "512MiB"},
    "lifecycle": {"idle": "10m"},
    "setup": ["echo prepared > /workspace/prepared.txt"],
}


class NotSeen(Exception):
    """The platform did not do what the step waited for."""


@dataclass
class Tour:
    """What the steps share."""

    client: Client
    folder: Path
    seen: dict[str, int] = field(default_factory=dict)

    def wait(self, what: str, check: Callable[[], Any]) -> Any:
        """Look until ``check`` gives something true; at most a minute."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            found = check()
            if found:
                return found
            time.sleep(0.02)  # noqa: TID251 another process works; there is nothing else to wait for
        raise NotSeen(f"not within {WAIT_SECONDS:.0f} s: {what}")

    def view(self, environment_id: str) -> dict[str, Any]:
        """The Environment as it is now."""
        return dict(self.client.expect(200, "GET", environment_path(environment_id)))

    def wait_observed(self, observed: str) -> dict[str, Any]:
        """Wait until the pod is seen so."""

        def look() -> dict[str, Any] | None:
            view = self.view("demo-pod")
            return view if view["pod"]["observed"] == observed else None

        return dict(self.wait(f"demo-pod is {observed}", look))

    def bash(self, environment_id: str, command: str) -> str:
        """Run a command that must succeed; its standard output."""
        answer = self.client.expect(200, "POST", environment_path(environment_id, "/tools/bash"), {"command": command})
        if answer["kind"] != "completed" or answer["output"]["exitCode"] != 0:
            raise NotSeen(f"{command!r} in {environment_id}: {answer}")
        return str(answer["output"]["stdout"])

    def events(self, environment_id: str) -> str:
        """The events since the last time, in words."""
        start = self.seen.get(environment_id, 0)
        found = self.client.expect(200, "GET", environment_path(environment_id, f"/events?from={start}"))["events"]
        self.seen[environment_id] = start + len(found)
        return ", ".join(f"{event['type']} {json.dumps(event['payload'])}" for event in found)

    def pod_folder(self, environment_id: str = "demo-pod") -> Path:
        """Where the local Driver keeps the pod of this Environment."""
        for place in (self.folder / "pods").glob("sbx-*-g*"):
            if json.loads((place / "object.json").read_text())["environmentId"] == environment_id:
                return place
        raise NotSeen(f"{environment_id} has no pod")


def save_manifest(tour: Tour) -> str:
    """A Manifest is saved in numbered versions; the same body again makes none."""
    saved = tour.client.expect(201, "PUT", "/v1/environment-manifests/demo-box", MANIFEST)
    tour.client.expect(200, "PUT", "/v1/environment-manifests/demo-box", MANIFEST)
    return f"demo-box@{saved['version']} {saved['hash'][:19]}…"


def make_three(tour: Tour) -> str:
    """One of each kind; a second PUT finds what the first made."""
    tour.client.expect(201, "PUT", environment_path("demo-none"), {"kind": "none"})
    tour.client.expect(201, "PUT", environment_path("demo-virtual"), {"labels": {"demo": "yes"}})
    tour.client.expect(201, "PUT", environment_path("demo-pod"), {"manifest": "demo-box", "labels": {"demo": "yes"}})
    tour.client.expect(200, "PUT", environment_path("demo-pod"), {"manifest": "demo-box"})
    listed = tour.client.expect(200, "GET", "/v1/environments?label=demo=yes")["environments"]
    if [view["id"] for view in listed] != ["demo-pod", "demo-virtual"]:
        raise NotSeen(f"listed: {listed}")
    return f"{tour.events('demo-none')}, {tour.events('demo-virtual')}"


def run_commands(tour: Tour) -> str:
    """The first call on a pod waits for its start and its setup."""
    virtual = tour.bash("demo-virtual", "echo $((6 * 7))").strip()
    pod = tour.bash("demo-pod", "cat prepared.txt; id -un; nproc >/dev/null").split()
    if virtual != "42" or pod != ["prepared", "sandbox"]:
        raise NotSeen(f"virtual said {virtual!r}, pod said {pod!r}")
    return f"virtual: {virtual}; pod: {' '.join(pod)}; {tour.events('demo-pod')}"


def move_files(tour: Tour) -> str:
    """Bytes go in and out exactly, through the raw routes and through the tools."""
    content = bytes(range(256)) * 64
    for environment_id in ("demo-virtual", "demo-pod"):
        path = environment_path(environment_id, "/files/in/data.bin")
        tour.client.expect(201, "PUT", path, raw=content)
        if tour.client.expect(200, "GET", path) != content:
            raise NotSeen("other bytes came back")
        part = tour.client.expect(206, "GET", path, headers={"Range": "bytes=256-511"})
        if part != content[256:512]:
            raise NotSeen("another range came back")
    listed = tour.client.expect(200, "GET", environment_path("demo-pod", "/files?list=1"))
    return f"{len(content)} bytes each; pod holds {', '.join(entry['path'] for entry in listed['entries'])}"


def stop(tour: Tour) -> str:
    """The machine goes, the volume stays."""
    tour.client.expect(200, "POST", environment_path("demo-pod", "/stop"), {})
    tour.wait_observed("suspended")
    return tour.events("demo-pod")


def wake(tour: Tour) -> str:
    """A call wakes the pod, on the same volume."""
    if tour.bash("demo-pod", "cat prepared.txt").strip() != "prepared":
        raise NotSeen("the volume is another one")
    return tour.events("demo-pod")


def survive_a_kill(tour: Tour) -> str:
    """A killed pod is made again on its volume by the next call."""
    tour.bash("demo-pod", "echo kept > kept.txt")
    machine = json.loads((tour.pod_folder() / "pod.json").read_text())
    os.kill(int(machine["engine"]["pid"]), signal.SIGKILL)
    if tour.bash("demo-pod", "cat kept.txt").strip() != "kept":
        raise NotSeen("the file is gone")
    return tour.events("demo-pod")


def lose_the_volume(tour: Tour) -> str:
    """A pod whose volume vanished is lost: it refuses calls and says why; a reset leads out."""
    machine = json.loads((tour.pod_folder() / "pod.json").read_text())
    os.kill(int(machine["engine"]["pid"]), signal.SIGKILL)
    shutil.rmtree(tour.pod_folder() / "volume")
    answer = tour.client.call("POST", environment_path("demo-pod", "/tools/bash"), {"command": "true"})
    if answer.status != 409 or answer.body["code"] != "environment_lost":
        raise NotSeen(f"{answer.status} {answer.body}")
    return f"{answer.body['message']} {tour.events('demo-pod')}"


def reset(tour: Tour) -> str:
    """A new pod on a new, empty volume; setup runs again."""
    view = tour.client.expect(200, "POST", environment_path("demo-pod", "/reset"), {})
    names = tour.bash("demo-pod", "ls").split()
    if names != ["prepared.txt"]:
        raise NotSeen(f"the new disk holds {names}")
    return f"volume generation {view['pod']['volumeGeneration']}; {tour.events('demo-pod')}"


def idle(tour: Tour) -> str:
    """Left alone, a pod is suspended."""
    tour.client.expect(200, "PUT", "/v1/tenant/sandbox", {"limits": {"idle": "1s"}})
    tour.wait_observed("suspended")
    tour.client.expect(200, "PUT", "/v1/tenant/sandbox", {})
    return tour.events("demo-pod")


def sweep(tour: Tour) -> str:
    """Unused for its ``deleteAfter``, an Environment goes by itself."""
    body = {"kind": "virtual", "lifecycle": {"deleteAfter": "1s"}}
    view = tour.client.expect(201, "PUT", environment_path("demo-unused"), body)
    tour.bash("demo-unused", "echo used > once.txt")
    gone = lambda: tour.client.call("GET", environment_path("demo-unused")).status == 404  # noqa: E731
    tour.wait("demo-unused is deleted", gone)
    return f"deleteAt was {view['deleteAt']}; {tour.events('demo-unused')}"


def delete(tour: Tour) -> str:
    """Gone for every caller at once; the machine and its volume follow."""
    for environment_id in ("demo-none", "demo-virtual", "demo-pod"):
        answer = tour.client.expect(200, "DELETE", environment_path(environment_id))
        if not answer["deleted"]:
            raise NotSeen(f"{environment_id} was not there")
        tour.client.expect(404, "GET", environment_path(environment_id))
    tour.wait("the pod's folder is gone", lambda: not any((tour.folder / "pods").glob("sbx-*")))
    tour.wait("no workspace is left", lambda: not any((tour.folder / "workspaces").glob("*-*-*")))
    return tour.events("demo-pod")
