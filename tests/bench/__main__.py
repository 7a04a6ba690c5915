"""Run every figure and write ``.nylorun/bench.json``: ``python -m tests.bench``.

Each figure stands beside its floor, measured in the same run on the same cores; read ratios, not milliseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from environments.compute.channel import EngineChannel
from environments.compute.contract import Interrupted, NotAccepted, SandboxSpec
from environments.compute.local.driver import LocalDriver
from nylorun.cli.client import environment_path
from tests.bench.disks import disks
from tests.bench.gate import gate
from tests.bench.load import Caller, alternating, p50, timed, under_load
from tests.bench.sealed import sealed
from tests.bench.table import clear, lay, swept_per_second
from tests.support.platform import Platform, eventually, platform

REPORT = Path(".nylorun") / "bench.json"
BASH = b'{"command":"echo hi"}'
POD = b'{"kind":"pod","resources":{"cpus":1,"memory":"256MiB"}}'


@dataclass
class Bench:
    """What the figures share: the platform, the floor's server, and what was measured."""

    live: Platform
    floor_url: str
    environment: dict[str, str]
    figures: list[dict[str, Any]] = field(default_factory=list)

    def caller(self, method: str, path: str, body: bytes = b"") -> Caller:
        """A caller of the API."""
        return Caller(self.live.client.url, method, path, self.live.client.key, body)

    def floor(self, path: str) -> Caller:
        """A caller of the floor."""
        return Caller(self.floor_url, "GET", path)

    def note(self, name: str, value: float, *, bar: float, unit: str = "ms", floor: float | None = None) -> None:
        """Print and keep one figure; with a floor the bar is on the ratio, else on the value."""
        figure: dict[str, Any] = {"name": name, "unit": unit, "value": round(value, 3), "bar": bar}
        measured = value
        if floor is not None:
            measured = value / floor
            figure.update(floor=round(floor, 3), ratio=round(measured, 2))
        figure["ok"] = measured >= bar if unit == "1/s" else measured <= bar
        self.figures.append(figure)
        beside = f"  floor {floor:9.2f}  ratio {measured:5.2f}" if floor is not None else " " * 32
        print(f"{'ok  ' if figure['ok'] else 'MISS'} {name:58} {value:9.2f} {unit:4}{beside}  bar {bar:g}", flush=True)


def requests(bench: Bench) -> None:
    """A found ``PUT`` and a ``GET`` beside a bare callable that locks the same row."""
    path = environment_path("bench")
    for clients in (1, 16):
        floor = p50(under_load(lambda: bench.floor("/lock"), clients))
        for method, body in (("PUT", b"{}"), ("GET", b"")):
            value = p50(under_load(lambda method=method, body=body: bench.caller(method, path, body), clients))  # type: ignore[misc]
            bench.note(f"found {method}, {clients} clients, p50", value, floor=floor, bar=4)


def virtual(bench: Bench) -> None:
    """A command on a warm workspace, and a new Environment with its first command, beside a found ``PUT``."""
    put = bench.caller("PUT", environment_path("bench"), b"{}")
    bash = bench.caller("POST", environment_path("bench", "/tools/bash"), BASH)
    for _ in range(20):
        bash()
    found, warm = alternating(put, bash, 300)
    bench.note("virtual: warm bash 'echo hi', p50", warm, floor=found, bar=2.5)

    def first() -> None:
        id = f"new-{uuid.uuid4().hex}"
        bench.caller("PUT", environment_path(id), b"{}")()
        bench.caller("POST", environment_path(id, "/tools/bash"), BASH)()

    found, made = alternating(put, first, 60)
    bench.note("virtual: create and first command, p50", made, floor=found, bar=8)


def pods(bench: Bench) -> None:
    """A command on a warm pod, a wake and a create to the first output, beside a bare start of the same pod."""
    path = environment_path("bench-pod")
    bench.caller("PUT", path, POD)()
    bash = bench.caller("POST", environment_path("bench-pod", "/tools/bash"), BASH)
    bash()
    put = bench.caller("PUT", environment_path("bench"), b"{}")
    found, warm = alternating(put, bash, 300)
    bench.note("pod: warm bash 'echo hi', p50", warm, floor=found, bar=2.5)
    stop = bench.caller("POST", f"{path}/stop", b"{}")
    starts, wakes, creates = [], [], []
    with bare_pods() as start:
        for round in range(12):
            stop()
            eventually(lambda: bench.live.view("bench-pod")["pod"]["observed"] == "suspended")
            starts.append(timed(start))
            wakes.append(timed(bash))
            creates.append(timed(lambda round=round: create_pod(bench, f"made-{round}")))  # type: ignore[misc]
    bench.note("pod: wake to first output, p50", p50(wakes), floor=p50(starts), bar=4)
    bench.note("pod: create to first output, p50", p50(creates), floor=p50(starts), bar=4)


def create_pod(bench: Bench, id: str) -> None:
    """A new pod and its first command; removed again outside the measure by the platform's end."""
    bench.caller("PUT", environment_path(id), POD)()
    bench.caller("POST", environment_path(id, "/tools/bash"), BASH)()


@contextmanager
def bare_pods() -> Iterator[Callable[[], None]]:
    """Start the same pod without a control plane: from the Driver's apply to its Engine's first answer."""
    with tempfile.TemporaryDirectory(prefix="nylorun-bare-") as folder:
        driver = LocalDriver(Path(folder), "bench")
        made: list[str] = []

        def start() -> None:
            name = f"sbx-{len(made):016d}".translate(str.maketrans("01889", "abcde")) + "-g0"
            made.append(name)
            spec = SandboxSpec(
                name=name, op_id=f"{name}.r1", installation="bench", uid=str(uuid.uuid4()), environment_id="bare",
                mode="Running", cpus=1, memory_mib=256, storage_gib=5, grace_seconds=1,
                engine_url="http://127.0.0.1:9", egress_url="http://127.0.0.1:9", join_token="x",
            )  # fmt: skip
            driver.apply(spec)
            address = driver.status(name).address
            while not answers(str(address)):
                address = address or driver.status(name).address

        try:
            yield start
        finally:
            for name in made:
                driver.delete(name)


def answers(address: str) -> bool:
    """Whether the Engine answers."""
    try:
        EngineChannel(address).call("ping", {}, call_id="ping", epoch=0, time_limit_s=1)
    except (NotAccepted, Interrupted):
        return False
    return True


def many(bench: Bench) -> None:
    """A found ``PUT`` and a labelled page with 100 000 Environments beside the same with 100."""
    url = bench.environment["DATABASE_URL"]
    put = bench.caller("PUT", environment_path("bench"), b"{}")
    page = bench.caller("GET", "/v1/environments?label=team=t0&limit=50")
    measured = {}
    for count in (100, 100_000):
        lay(url, "many-", count)
        for act in (put, page):
            for _ in range(20):
                act()
        measured[count] = alternating(put, page, 200)
        clear(url, "many-")
    bench.note("found PUT with 100 000 Environments, p50", measured[100_000][0], floor=measured[100][0], bar=1.3)
    bench.note("labelled page with 100 000 Environments, p50", measured[100_000][1], floor=measured[100][1], bar=1.5)


def sweep(bench: Bench) -> None:
    """Expired Environments deleted in a second."""
    url = bench.environment["DATABASE_URL"]
    bench.live.part("worker").suspend()
    try:
        lay(url, "due-", 10_000, expired=True)
        rate = swept_per_second(bench.environment)
    finally:
        bench.live.part("worker").resume()
        clear(url, "due-")
    bench.note("sweep of 10 000 expired Environments", rate, unit="1/s", bar=300)


def memory(bench: Bench) -> None:
    """Resident memory: everything but pods, and one idle pod."""
    bench.caller("PUT", environment_path("idle-pod"), POD)()
    bench.live.bash("idle-pod", "true")
    machine = json.loads((bench.live.pod("idle-pod") / "pod.json").read_text())
    supervisor = psutil.Process(machine["supervisor"]["pid"])
    pod = sum(resident(process) for process in (supervisor, *supervisor.children(recursive=True)))
    up = psutil.Process(bench.live.process.pid)
    everything = sum(resident(process) for process in (up, *up.children(recursive=True)))
    bench.note("memory: everything but pods (RSS)", everything, unit="MB", bar=700)
    bench.note("memory: one idle pod (RSS)", pod, unit="MB", bar=25)


def resident(process: psutil.Process) -> float:
    """RSS in MB; 0 for one that is gone."""
    with suppress(psutil.NoSuchProcess):
        return float(process.memory_info().rss) / 1e6
    return 0.0


@contextmanager
def floor_server(environment: dict[str, str]) -> Iterator[str]:
    """The bare callable behind the same server with the same threads."""
    command = [
        sys.executable, "-m", "gunicorn", "--worker-class=gthread", "--workers=1", "--threads=128", "--keep-alive=30",
        "--bind=127.0.0.1:0", "--log-level=info", "--no-control-socket", "tests.bench.floor:application",
    ]  # fmt: skip
    server = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "Listening at: " in line)
        yield line.split("Listening at: ")[1].split()[0]
    finally:
        server.terminate()
        server.wait()


FIGURES: tuple[Callable[[Bench], None], ...] = (memory, requests, virtual, pods, disks, many, sweep, sealed, gate)


def main() -> int:
    """Measure, print, write; 0 also when a bar is missed, since these are figures and no test."""
    started = time.monotonic()
    with platform("--driver", "local") as live:
        environment: dict[str, str] = json.loads((live.folder / "run" / "environment.json").read_text())
        live.client.expect(201, "PUT", environment_path("bench"), {})
        live.client.expect(200, "PUT", "/v1/tenant/sandbox", {"limits": {"environments": 1_000_000}})
        with floor_server(environment) as floor_url:
            bench = Bench(live, floor_url, environment)
            for figure in FIGURES:
                figure(bench)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"figures": bench.figures}, indent=2) + "\n")
    missed = [figure["name"] for figure in bench.figures if not figure["ok"]]
    print(
        f"\n{len(bench.figures)} figures in {time.monotonic() - started:.0f} s; missed: {', '.join(missed) or 'none'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
