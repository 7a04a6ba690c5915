"""The whole platform with its real processes, for tests that kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from nylorun.cli.client import Client, environment_path
from nylorun.cli.leftovers import leftovers

QUICK = {
    "NYLORUN_IDLE_SCAN_SECONDS": "1",
    "NYLORUN_SWEEP_SECONDS": "2",
    "NYLORUN_OUTBOX_DRAIN_SECONDS": "1",
    "NYLORUN_OUTBOX_GRACE_SECONDS": "1",
    "NYLORUN_STALE_ROW_SECONDS": "3",
}
START_SECONDS = 240.0


def eventually(check: Callable[[], Any], *, within: float = 120.0, what: str = "") -> Any:
    """The first true answer of ``check``; fails when there is none in time. Errors count as not yet."""
    deadline = time.monotonic() + within
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = check()
        except Exception as error:  # noqa: BLE001 a server that restarts answers in many ways
            last = error
        if last and not isinstance(last, Exception):
            return last
        time.sleep(0.05)  # noqa: TID251 the one place where a test looks again
    raise AssertionError(f"not within {within} s: {what}; last: {last!r}")


@dataclass
class Platform:
    """A running ``nylorun up``."""

    folder: Path
    process: subprocess.Popen[bytes]
    client: Client

    def part(self, name: str) -> psutil.Process:
        """The process of one part: api, worker, beat, engine, postgres or valkey."""
        words = {
            "api": "gunicorn",
            "worker": "--hostname=worker@",
            "worker-disk": "--hostname=worker-disk@",
            "beat": "workers.beat",
            "engine": "environments.compute.virtual.server",
            "egress": "run_egress",
            "postgres": "postgres",
            "valkey": "valkey",
        }[name]
        children = psutil.Process(self.process.pid).children()
        (found,) = [child for child in children if any(words in word for word in child.cmdline())]
        return found

    def kill(self, name: str) -> None:
        """SIGKILL the whole group of a part, as the kernel would for lack of memory."""
        os.killpg(self.part(name).pid, signal.SIGKILL)

    def pod(self, environment_id: str) -> Path:
        """The folder of an Environment's pod."""
        for place in (self.folder / "pods").glob("sbx-*"):
            if json.loads((place / "object.json").read_text()).get("environmentId") == environment_id:
                return place
        raise LookupError(environment_id)

    def kill_pod(self, environment_id: str) -> None:
        """SIGKILL the Engine of a pod: the first process of its namespace."""
        machine = json.loads((self.pod(environment_id) / "pod.json").read_text())
        os.kill(machine["engine"]["pid"], signal.SIGKILL)

    def ready(self) -> bool:
        """Every check of ``/readyz`` is ok."""
        return self.client.call("GET", "/readyz").status == 200

    def view(self, environment_id: str) -> dict[str, Any]:
        """The Environment as it is now."""
        return dict(self.client.expect(200, "GET", environment_path(environment_id)))

    def bash(self, environment_id: str, command: str) -> str:
        """A command that must succeed; its standard output."""
        path = environment_path(environment_id, "/tools/bash")
        answer = self.client.expect(200, "POST", path, {"command": command})
        assert answer["kind"] == "completed", answer
        assert answer["output"]["exitCode"] == 0, answer
        return str(answer["output"]["stdout"])

    def event_types(self, environment_id: str) -> list[str]:
        """Types of all events, after checking that their numbers have no gap."""
        events = self.client.expect(200, "GET", environment_path(environment_id, "/events?limit=1000"))["events"]
        assert [event["seq"] for event in events] == list(range(len(events)))
        return [event["type"].partition(".")[2] for event in events]

    def stop(self) -> int:
        """An orderly end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def start(folder: Path, *options: str) -> Platform:
    """Run ``nylorun up`` on this folder until it is ready."""
    (folder / "connection.json").unlink(missing_ok=True)
    log = (folder / "up.log").open("ab")
    command = [sys.executable, "-m", "nylorun", "up", "--data-dir", str(folder), "--port", "0", *options]
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    for name in ("NYLORUN_DATA_DIR", "NYLORUN_DRIVER", "DJANGO_SETTINGS_MODULE"):
        environment.pop(name, None)
    process = subprocess.Popen(command, stdout=log, stderr=log, env={**environment, **QUICK})

    def connection() -> dict[str, Any]:
        assert process.poll() is None, (folder / "up.log").read_text()[-3000:]
        return dict(json.loads((folder / "connection.json").read_text()))

    made = eventually(connection, within=START_SECONDS, what="nylorun up is ready")
    return Platform(folder, process, Client(made["url"], made["applicationKey"]))


@contextmanager
def platform(*options: str, within: Path | None = None) -> Iterator[Platform]:
    """A platform in a folder of its own, made in ``within``; at the end nothing of it may be left on the machine."""
    with tempfile.TemporaryDirectory(prefix="nylorun-live-", dir=within, ignore_cleanup_errors=True) as name:
        running = start(Path(name), *options)
        try:
            yield running
            for view in running.client.expect(200, "GET", "/v1/environments")["environments"]:
                running.client.expect(200, "DELETE", environment_path(view["id"], "?force=true"))
            eventually(lambda: not any((Path(name) / "pods").glob("sbx-*")), what="every pod is gone")
            assert running.stop() == 0
        finally:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()
        assert leftovers(Path(name)) == []
