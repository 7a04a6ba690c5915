"""The tour: starts the whole platform in a temporary folder and walks one Environment of each kind through its life.

Everything is asked over HTTP, as an application would; only the two accidents (a pod that is killed, a volume that
vanishes) are made by hand in the data folder. Each step is printed with its time and the events it caused, and written
to ``.nylorun/demo.json``. Nothing is left: no process, mount, cgroup or folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nylorun.cli.client import Client, environment_path
from nylorun.cli.leftovers import leftovers
from nylorun.cli.steps import STEPS
from nylorun.cli.tour import Tour
from nylorun.config import ConfigError
from nylorun.embedded.installation import Installation

START_SECONDS = 180.0
STOP_SECONDS = 20.0
REPORT = Path(".nylorun") / "demo.json"
FAST_SCHEDULES = {"NYLORUN_IDLE_SCAN_SECONDS": "1", "NYLORUN_SWEEP_SECONDS": "2", "NYLORUN_OUTBOX_DRAIN_SECONDS": "2"}


@dataclass
class Report:
    """What ``demo.json`` holds."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False

    def step(self, name: str, act: Callable[[], str]) -> bool:
        """Run one step, print it, note it; false when it failed."""
        started = time.monotonic()
        try:
            said, ok = act(), True
        except Exception as error:  # noqa: BLE001 a failed step is what the report is for
            said, ok = f"{type(error).__name__}: {error}", False
        ms = round((time.monotonic() - started) * 1000)
        print(f"{'ok' if ok else 'FAILED':6} {ms:6d} ms  {name}" + (f"\n{' ' * 18}{said}" if said else ""), flush=True)
        self.steps.append({"name": name, "ms": ms, "ok": ok})
        return ok

    @property
    def ok(self) -> bool:
        """The tour went to its end, and every step went well."""
        return self.finished and all(step["ok"] for step in self.steps)

    def write(self) -> None:
        """Write the file."""
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(json.dumps({"steps": self.steps, "ok": self.ok}, indent=2) + "\n")


def run(driver: str = "local") -> int:
    """The whole tour; 0 when every step went well. A wrong setting is raised before anything starts."""
    report = Report()
    report.write()
    folder = _fresh_folder()
    platform: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if report.step("start the platform", lambda: _start(folder, driver, platform)):
            report.finished = _walk(folder, report)
    except KeyboardInterrupt:
        print("\nstopping: the pods first, then the platform", flush=True)
    finally:
        # A second signal does not cut this short: what was started is ended.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report.step("stop the platform", lambda: _stop(folder, platform))
        report.step("nothing is left", lambda: _nothing_left(folder))
        report.write()
    print(f"\n{'All steps went well' if report.ok else 'The demo FAILED'}; see {REPORT}")
    return 0 if report.ok else 1


def _fresh_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="nylorun-demo-"))
    try:
        Installation(folder).check_settings()
    except ConfigError:
        shutil.rmtree(folder)
        raise
    return folder


def _walk(folder: Path, report: Report) -> bool:
    tour = _tour(folder)
    return all(report.step(name, lambda act=act: act(tour)) for name, act in STEPS)  # type: ignore[misc]  # bound at once


def _tour(folder: Path) -> Tour:
    connection = json.loads((folder / "connection.json").read_text())
    return Tour(Client(connection["url"], connection["applicationKey"]), folder)


def _start(folder: Path, driver: str, platform: list[subprocess.Popen[bytes]]) -> str:
    log = (folder / "up.log").open("wb")
    command = [sys.executable, "-m", "nylorun", "up", "--data-dir", str(folder), "--port", "0", "--driver", driver]
    process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **FAST_SCHEDULES})
    platform.append(process)
    deadline = time.monotonic() + START_SECONDS
    while not (folder / "connection.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError((folder / "up.log").read_text()[-2000:])
        time.sleep(0.05)  # noqa: TID251 another process starts; there is nothing else to wait for
    return str(json.loads((folder / "connection.json").read_text())["url"])


def _stop(folder: Path, platform: list[subprocess.Popen[bytes]]) -> str:
    """Delete what the tour left, which takes the machines along, then end the platform in order."""
    try:
        if (folder / "connection.json").exists():
            _delete_all(_tour(folder))
    finally:
        for process in platform:
            _end(process)
    return ""


def _delete_all(tour: Tour) -> None:
    """Every Environment there is: a tour that was cut short may have left any of them."""
    for view in tour.client.expect(200, "GET", "/v1/environments?limit=100")["environments"]:
        tour.client.call("DELETE", environment_path(view["id"], "?force=true"))
    tour.wait("the last pod is gone", lambda: not any((tour.folder / "pods").glob("sbx-*")))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    if code != 0:
        raise RuntimeError(f"nylorun up ended with {code}")


def _nothing_left(folder: Path) -> str:
    left = leftovers(folder)
    shutil.rmtree(folder)
    if left:
        raise RuntimeError("; ".join(left))
    return "no process, no mount, no cgroup, no folder"
