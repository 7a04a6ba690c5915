"""`nylorun up` with its real processes: ready, killed in every part, killed itself, ended; and the verbs beside it."""

import http.client
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nylorun.embedded.processes import Identity
from tests.embedded.support import ROOT, eventually, kill, plain_environment

pytestmark = pytest.mark.live

PARTS = {"postgres", "valkey", "engine", "worker", "worker-disk", "egress", "beat", "api"}


@dataclass
class Up:
    """One `nylorun up` and the lines it has printed."""

    folder: Path
    process: subprocess.Popen[str] | None = None
    lines: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.process = subprocess.Popen(
            (sys.executable, "-m", "nylorun", "up", "--data-dir", str(self.folder), "--port", "0", "--driver", "local"),
            cwd=ROOT,
            env=plain_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.read_to("ready at")

    def read_to(self, words: str) -> str:
        """The next line with `words`."""
        assert self.process is not None
        assert self.process.stdout is not None
        while words not in (line := self.process.stdout.readline()):
            assert line, "it ended:\n" + "".join(self.lines)
            self.lines.append(line)
        return line

    def connection(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "connection.json").read_text())
        return found

    def parts(self) -> dict[str, Identity]:
        found = {path.stem: path.read_text().split() for path in (self.folder / "run").glob("*.pid")}
        return {name: Identity(int(pid), started) for name, (pid, started) in found.items()}

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """One request with the application's key."""
        connected = self.connection()
        connection = http.client.HTTPConnection(connected["url"].removeprefix("http://"), timeout=60)
        headers = {"Authorization": f"Bearer {connected['applicationKey']}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        self.lines += self.process.communicate(timeout=20)[0].splitlines()
        return self.process.returncode


def verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-m", "nylorun", *arguments),
        cwd=ROOT,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def said(up: Up, name: str) -> str:
    """What a command in the Environment printed."""
    status, answer = up.call("POST", f"/v1/environments/{name}/tools/bash", {"command": "echo hello"})
    assert status == 200, answer
    printed: str = answer["output"]["stdout"]
    return printed


def delete(up: Up, name: str) -> None:
    """Delete a pod and wait until its row is gone, and so its processes."""
    assert up.call("DELETE", f"/v1/environments/{name}?force=true")[0] == 200
    eventually(lambda: not list((up.folder / "pods").glob("sbx-*")), 30)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "data")
    yield made
    left = made.parts()
    if made.process is not None and made.process.poll() is None:
        made.end()
    for found in left.values():
        kill(found, signal.SIGKILL)


def test_from_an_empty_folder_to_a_wake_and_to_an_orderly_end(up: Up) -> None:
    up.start()
    connected = up.connection()
    assert up.process is not None
    assert connected["pid"] == up.process.pid
    assert stat.S_IMODE((up.folder / "connection.json").stat().st_mode) == 0o600
    assert set(up.parts()) == PARTS
    assert up.call("GET", "/readyz")[0] == 200

    assert up.call("PUT", "/v1/environments/folder", {"kind": "virtual"})[0] == 201
    assert said(up, "folder") == "hello\n"
    assert up.call("PUT", "/v1/environments/pod", {"kind": "pod"})[0] == 201
    status, view = up.call("POST", "/v1/environments/pod/wake")
    assert (status, view["state"]) == (200, "running")
    assert said(up, "pod") == "hello\n"
    delete(up, "pod")

    left = up.parts()
    assert up.end() == 0
    assert not (up.folder / "connection.json").exists()
    assert [name for name, found in left.items() if found.alive()] == []
    ended = [line.split()[1] for line in up.lines if " ended (" in line]
    assert ended == ["api", "beat", "worker", "worker-disk", "egress", "engine", "valkey", "postgres"]


def test_every_part_that_is_killed_comes_back_and_everything_works_again(up: Up) -> None:
    up.start()
    first = up.parts()
    for name, found in first.items():
        os.kill(found.pid, signal.SIGKILL)
        up.read_to(f"{name} died (SIGKILL)")
        up.read_to(f"{name} ready")
    now = up.parts()
    assert set(now) == PARTS
    assert not set(now.values()) & set(first.values())
    assert eventually(lambda: up.call("GET", "/readyz")[0] == 200)
    assert up.call("GET", "/v1/environments")[0] == 200


def test_after_a_kill_the_next_start_has_the_same_state_and_key_and_the_same_pod(up: Up) -> None:
    up.start()
    before, first = up.connection(), up.parts()
    assert up.call("PUT", "/v1/environments/kept", {"kind": "pod"})[0] == 201
    write = {"command": "(sleep 600 & echo $! > number); cat number"}
    sleeper = up.call("POST", "/v1/environments/kept/tools/bash", write)[1]["output"]["stdout"]
    assert up.process is not None
    up.process.kill()
    up.process.communicate()

    up.start()
    try:
        assert up.connection()["applicationKey"] == before["applicationKey"]
        assert [name for name, found in first.items() if found.alive()] == []
        look = {"command": "cat number; kill -0 $(cat number) && echo alive"}
        answer = up.call("POST", "/v1/environments/kept/tools/bash", look)[1]
        assert answer["output"]["stdout"] == sleeper + "alive\n"
    finally:
        delete(up, "kept")


def test_keys_and_manage_work_while_it_runs_and_when_it_does_not(up: Up) -> None:
    up.start()
    made = verb("keys", "create", "second", "--data-dir", str(up.folder))
    assert made.returncode == 0, made.stderr
    assert len(made.stdout.strip()) == 64
    assert "second" in verb("keys", "list", "--data-dir", str(up.folder)).stdout
    assert verb("manage", "--data-dir", str(up.folder), "--", "migrate", "--check").returncode == 0
    assert up.end(signal.SIGINT) == 0

    revoked = verb("keys", "revoke", "second", "--data-dir", str(up.folder))
    assert revoked.returncode == 0, revoked.stderr
    listed = verb("keys", "list", "--data-dir", str(up.folder)).stdout.splitlines()
    assert ["revoked" in line for line in listed if line.startswith("second")] == [True]
    assert up.parts() == {}


def test_a_revoked_key_of_its_own_is_replaced_at_the_next_start(up: Up) -> None:
    up.start()
    before = up.connection()["applicationKey"]
    assert verb("keys", "revoke", "up", "--data-dir", str(up.folder)).returncode == 0
    assert up.call("GET", "/v1/environments")[0] == 401
    assert up.end() == 0

    up.start()
    assert up.connection()["applicationKey"] != before
    assert up.call("GET", "/v1/environments")[0] == 200
