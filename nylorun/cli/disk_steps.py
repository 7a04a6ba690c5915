"""The steps of the tour that are about disks: snapshot, fork onto a new Manifest version, restore, recovery."""

from __future__ import annotations

import json
import os
import shutil
import signal

from nylorun.cli.client import environment_path
from nylorun.cli.tour import NotSeen, Tour

BOX = {
    "kind": "pod",
    "resources": {"cpus": 1, "memory": "256MiB"},
    "lifecycle": {"keep": 3, "onLost": "restore"},
}


def snapshot(tour: Tour) -> str:
    """The disk becomes a numbered version; an unchanged disk makes none."""
    tour.client.expect(201, "PUT", "/v1/environment-manifests/demo-disk", BOX)
    tour.client.expect(201, "PUT", environment_path("demo-source"), {"manifest": "demo-disk"})
    tour.bash("demo-source", "mkdir -p model && echo first > model/weights.txt && ln model/weights.txt same.txt")
    path = environment_path("demo-source", "/snapshots")
    made = tour.client.expect(201, "POST", path, {})
    again = tour.client.expect(200, "POST", path, {})
    if again["version"] != made["version"] or again["created"]:
        raise NotSeen(f"an unchanged disk made {again}")
    return f"version {made['version']}: {made['fileCount']} entries, {made['size']} bytes; again: no new version"


def fork(tour: Tour) -> str:
    """A copy beside the source, on the next version of its Manifest, whose setup runs on the copied disk."""
    body = {**BOX, "setup": ["echo prepared > prepared.txt"]}
    tour.client.expect(201, "PUT", "/v1/environment-manifests/demo-disk", body)
    forked = tour.client.expect(201, "POST", environment_path("demo-source", "/fork"), {"id": "demo-fork"})
    said = tour.bash("demo-fork", "cat model/weights.txt prepared.txt").split()
    if said != ["first", "prepared"]:
        raise NotSeen(f"the fork holds {said}")
    changed = ", ".join(change["field"] for change in forked["plan"]["changes"])
    return f"disk {forked['plan']['disk']}, changed: {changed}; {tour.events('demo-fork')}"


def restore(tour: Tour) -> str:
    """Back to a version: a new volume that holds it; the old one is retired."""
    tour.bash("demo-source", "echo second > model/weights.txt && touch extra.txt")
    view = tour.client.expect(200, "POST", environment_path("demo-source", "/restore"), {"version": 1})
    said = tour.bash("demo-source", "cat model/weights.txt; ls").split()
    if said != ["first", "model", "same.txt"]:
        raise NotSeen(f"the restored disk holds {said}")
    return f"volume generation {view['pod']['volumeGeneration']}; {tour.events('demo-source')}"


def recover(tour: Tour) -> str:
    """A volume that vanishes comes back from the newest version by itself, since its Recipe asks for it."""
    place = tour.pod_folder("demo-source")
    machine = json.loads((place / "pod.json").read_text())
    os.kill(int(machine["engine"]["pid"]), signal.SIGKILL)
    shutil.rmtree(place / "volume")

    def recovered() -> bool:
        path = environment_path("demo-source", "/tools/bash")
        answer = tour.client.call("POST", path, {"command": "cat model/weights.txt"})
        return answer.status == 200 and answer.body["output"]["stdout"] == "first\n"

    tour.wait("demo-source is recovered", recovered)
    for environment_id in ("demo-source", "demo-fork"):
        tour.client.expect(200, "DELETE", environment_path(environment_id))
    tour.wait("their volumes are gone", lambda: len(list((tour.folder / "pods").glob("sbx-*"))) == 1)
    return tour.events("demo-source")
