"""Processes that die, servers that end, workspaces that are closed and dropped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from environments.compute.contract import Interrupted, NotAccepted
from environments.compute.virtual import landlock
from environments.compute.virtual.hatchery import SPARES, Hatchery
from tests.compute.virtual.support import REPOSITORY, Server, Workspace, background, eventually

Start = Callable[..., Server]
MIB = 1 << 20
RESTING = 1 + SPARES  # the zygote and what it has made ahead


def begun(workspace: Workspace) -> None:
    """Wait until the command that writes the file ``begun`` runs."""
    eventually(lambda: workspace.call("stat", {"path": "begun"}).kind == "completed")


def test_a_killed_process_interrupts_its_call_alone(start: Start) -> None:
    """E-196: the client learns that the call was interrupted, the files are there, the next call works."""
    server = start()
    workspace, other = server.workspace(), server.workspace()
    before = set(server.descendants())
    with background(lambda: other.bash("sleep 1; echo other")) as untouched:
        eventually(lambda: len(set(server.descendants()) - before) > 0)
        with background(lambda: workspace.try_bash("echo kept > begun; sleep 30")) as outcome:
            begun(workspace)
            _kill_the_busy_one(server, workspace)
        assert isinstance(outcome[0], Interrupted)
        assert workspace.bash("cat begun")["stdout"] == "kept\n"
    assert untouched[0]["stdout"] == "other\n"


def test_a_process_killed_inside_a_write_leaves_no_file_and_takes_no_room(start: Start) -> None:
    """E-01: what a lost write had brought so far does not count against ``limits.diskBytes``."""
    server = start()
    workspace = server.workspace(diskBytes=8 * MIB)
    workspace.write("kept", b"x")
    killed = threading.Event()

    def content() -> Iterator[bytes]:
        yield b"x" * (6 * MIB)
        killed.wait(20)

    lost = {"path": "lost", "mode": "0644"}
    with background(lambda: workspace.call("write", lost, body=content())) as outcome:
        eventually(lambda: _largest_open_file(server, workspace) == 6 * MIB)
        _kill_the_busy_one(server, workspace)
        killed.set()
    assert isinstance(outcome[0], Interrupted)
    assert os.listdir(server.root / workspace.uid / "workspace") == ["kept"]
    assert workspace.write("again", b"x" * (6 * MIB)).kind == "completed"


def _largest_open_file(server: Server, workspace: Workspace) -> int:
    """The size of the largest file of the workspace that a process of it has open."""
    sizes = [0]
    for pid in server.descendants():
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if os.readlink(handle).startswith(str(server.root / workspace.uid / "workspace/")):
                    sizes.append(handle.stat().st_size)
    return max(sizes)


def _kill_the_busy_one(server: Server, workspace: Workspace) -> None:
    """Kill every process but the zygote that has this workspace as its root or its folder."""
    folder = server.root / workspace.uid
    killed: list[int] = []
    for pid in server.descendants()[1:]:
        handles = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        if any(str(folder) in handle for handle in handles):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    assert killed
    eventually(lambda: not any(_lives(pid) for pid in killed))


def test_a_killed_server_leaves_no_process_and_loses_no_file(start: Start) -> None:
    server = start()
    workspace = server.workspace()
    with background(lambda: workspace.try_bash("echo kept > begun; while :; do :; done", timeout_ms=60_000)) as outcome:
        begun(workspace)
        family = server.descendants()
        server.stop(signal.SIGKILL)
    assert isinstance(outcome[0], Interrupted)
    assert eventually(lambda: not any(_lives(pid) for pid in family))
    with pytest.raises(NotAccepted):
        workspace.bash("true")
    server.start()
    assert workspace.bash("cat begun")["stdout"] == "kept\n"


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_lost_zygote_ends_the_server(start: Start) -> None:
    server = start()
    workspace = server.workspace()
    with background(lambda: workspace.try_bash("echo > begun; sleep 30")) as outcome:
        begun(workspace)
        os.kill(server.descendants()[0], signal.SIGKILL)
    assert isinstance(outcome[0], Interrupted)
    assert server.process is not None
    assert server.process.wait(timeout=10) == 70


def test_term_lets_short_calls_end_and_interrupts_the_rest(start: Start) -> None:
    server = start()
    short, long = server.workspace(), server.workspace()
    with (
        background(lambda: short.bash("echo > begun; sleep 0.5; echo done")) as ended,
        background(lambda: long.try_bash("echo > begun; sleep 30")) as cut,
    ):
        begun(short)
        begun(long)
        assert server.stop() == 0
    assert ended[0]["stdout"] == "done\n"
    assert isinstance(cut[0], Interrupted)


def test_one_folder_has_one_server(start: Start) -> None:
    server = start()
    command = [sys.executable, "-m", "environments.compute.virtual.server"]
    command += ["--socket", f"{server.socket}.2", "--root", str(server.root)]
    second = subprocess.run(command, env={"PYTHONPATH": str(REPOSITORY)}, cwd="/", capture_output=True, timeout=20)
    assert second.returncode == 75
    assert server.workspace().bash("echo first")["stdout"] == "first\n"


def test_an_idle_workspace_is_closed_and_opened_again(start: Start) -> None:
    """E-256: nothing is lost when an idle workspace is closed."""
    server = start("--idle", "0.3")
    workspace = server.workspace()
    eventually(lambda: len(server.descendants()) == RESTING)
    workspace.bash("echo kept > file")
    eventually(lambda: len(server.descendants()) == RESTING + 1)
    eventually(lambda: len(server.descendants()) == RESTING)
    assert workspace.bash("cat file")["stdout"] == "kept\n"


def test_the_one_idle_longest_gives_way(start: Start) -> None:
    server = start("--processes", "2")
    workspaces = [server.workspace() for _ in range(5)]
    for round_number in range(2):
        for workspace in workspaces:
            assert workspace.bash(f"echo {round_number} >> f; wc -l < f")["stdout"].strip() == str(round_number + 1)
    eventually(lambda: len(server.descendants()) == RESTING + 2)


def test_close_ends_what_is_idle_and_keeps_the_files(start: Start) -> None:
    server = start()
    workspace = server.workspace()
    workspace.bash("echo kept > file")
    eventually(lambda: len(server.descendants()) == RESTING + 1)
    assert workspace.call("close").output == {}
    eventually(lambda: len(server.descendants()) == RESTING)
    assert workspace.bash("cat file")["stdout"] == "kept\n"


def test_drop_removes_a_hostile_tree_and_what_runs_in_it(server: Server) -> None:
    """E-279: a dropped workspace is gone with all it holds; a new one under the same uid is empty."""
    workspace, other = server.workspace(), server.workspace()
    other.write("safe", b"safe")
    deep = "/deep" * 150
    workspace.bash(f"mkdir -p /workspace{deep}; echo x > /workspace{deep}/x")
    workspace.bash("mkdir -p closed/in; echo > closed/in/f; chmod 000 closed/in closed")
    (server.root / workspace.uid / "workspace" / "out").symlink_to(server.root / other.uid / "workspace")
    with background(lambda: workspace.try_bash("echo > begun; sleep 30")) as outcome:
        begun(workspace)
        assert workspace.call("drop").output == {"removed": True}
    assert isinstance(outcome[0], Interrupted)
    assert not (server.root / workspace.uid).exists()
    assert workspace.call("drop").output == {"removed": False}
    assert other.bash("cat safe")["stdout"] == "safe"
    assert workspace.bash("ls -A")["stdout"] == ""


def test_list_workspaces_names_what_there_is_with_its_age(start: Start) -> None:
    server = start()
    workspaces = [server.workspace() for _ in range(3)]
    for workspace in workspaces:
        workspace.write("f", b"1")
    (server.root / "not-a-workspace").mkdir()
    (server.root / f".going-{uuid.uuid4()}-left").mkdir()
    listed = workspaces[0].call("list_workspaces").output
    assert listed is not None
    ages = listed["workspaces"]
    assert isinstance(ages, dict)
    assert set(ages) == {workspace.uid for workspace in workspaces}
    assert all(0 <= age < 30 for age in ages.values())


def test_what_a_dead_server_began_to_remove_is_removed_at_the_next_start(start: Start) -> None:
    server = start()
    workspace = server.workspace()
    workspace.write("d/file", b"x")
    server.stop()
    left = server.root / f".going-{workspace.uid}-0123456789ab"
    (server.root / workspace.uid).rename(left)
    server.start()
    eventually(lambda: not left.exists())


def test_ping_says_which_confinements_hold(server: Server, workspace: Workspace) -> None:
    answer = workspace.call("ping")
    confined = {"root": os.geteuid() == 0, "landlock": landlock.version(), "calls": True}
    assert answer.output == {"engine": "virtual", "epoch": None, "confined": confined}


def test_a_zygote_that_cannot_start_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    lost = threading.Event()
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        hatchery = Hatchery(root, 65533, lost.set)
        assert not hatchery.wait_until_ready(20)
        assert lost.wait(5)
        hatchery.close()
    finally:
        os.close(root)
