"""Memory, time, output and disk of one workspace: they hold, and the others do not notice."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from environments.compute.contract import Answer
from environments.compute.virtual import ledger
from tests.compute.virtual.support import Server, Workspace, background

MIB = 1 << 20


def on_disk(server: Server, workspace: Workspace) -> int:
    root = server.root / workspace.uid
    return sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))


@pytest.mark.parametrize(
    "command",
    [
        "awk 'BEGIN { s = \"x\"; while (1) s = s s }'",
        "sort big big big big | tail -1",
        "cat big big big big | tac | tail -1",
    ],
)
def test_a_memory_hog_ends_alone(server: Server, workspace: Workspace, command: str) -> None:
    workspace.limits["memoryMib"] = 64
    workspace.write("big", b"0123456789abcde\n" * (MIB + MIB // 2))
    other = server.workspace()
    with background(lambda: other.bash("for i in 1 2 3 4 5; do sleep 0.1; echo $i; done")) as outcome:
        output = workspace.bash(command)
    assert output["exitCode"] == 134
    assert output["stderr"].startswith("nylorun: ended by signal 6: out of memory (64 MiB)")
    assert outcome[0]["stdout"] == "1\n2\n3\n4\n5\n"
    assert workspace.bash("ls; echo works")["stdout"] == "big\nworks\n"


@pytest.mark.parametrize(
    "command",
    [
        ":(){ :|:& };:",
        "f() { f; }; f",
        "f() { f & f & }; f; wait",
        "eval \"$(printf '(%.0s' {1..100000})\"",
        "while :; do bash -c 'true' & done",
        "yes | while read x; do echo $x $x $x; done",
        "cat /dev/zero",
        "while :; do echo flood; echo flood >&2; done",
        "jq -n '[range(1e9)] | length'",
        "echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | grep -E '(a+)+$b'",
        "kill -9 -1; kill -9 1; pkill -9 -f virtual; exit 0",
    ],
)
def test_hostile_commands_end_and_others_go_on(server: Server, workspace: Workspace, command: str) -> None:
    other = server.workspace()
    with background(lambda: other.bash("for i in 1 2 3; do sleep 0.1; echo $i; done")) as outcome:
        output = workspace.bash(command, timeout_ms=700)
    assert len(output["stdout"]) <= MIB
    assert len(output["stderr"]) <= MIB
    assert outcome[0]["stdout"] == "1\n2\n3\n"
    assert workspace.bash("echo works")["stdout"] == "works\n"


def test_a_file_beyond_the_disk_limit_is_refused_and_leaves_nothing(server: Server) -> None:
    """E-01: at ``limits.diskBytes`` writes fail with ``tool.no_space``."""
    workspace = server.workspace(diskBytes=8 * MIB)
    assert workspace.write("first", b"x" * (5 * MIB)).kind == "completed"
    assert workspace.write("second", b"x" * (5 * MIB)).code == "tool.no_space"
    assert workspace.bash("ls -A")["stdout"] == "first\n"
    assert on_disk(server, workspace) < 8 * MIB


def test_a_full_workspace_can_be_read_emptied_and_filled_again(server: Server) -> None:
    workspace = server.workspace(diskBytes=4 * MIB)
    workspace.write("a", b"x" * (3 * MIB))
    assert workspace.write("b", b"x" * (2 * MIB)).code == "tool.no_space"
    assert workspace.read("a", limit=5).output is not None
    assert workspace.call("move", {"from": "a", "to": "c"}).kind == "completed"
    assert workspace.call("list", {"path": "."}).kind == "completed"
    assert workspace.bash("rm c; echo gone")["stdout"] == "gone\n"
    assert workspace.write("b", b"x" * (2 * MIB)).kind == "completed"
    assert workspace.call("remove", {"path": "b"}).kind == "completed"
    assert workspace.write("b", b"x" * (3 * MIB)).kind == "completed"


@pytest.mark.parametrize(
    "command",
    [
        "for i in $(seq 64); do cp seed copy$i || exit 9; done",
        "while cat seed >> grown; do :; done; exit 9",
        "mkdir -p a/b; mv seed a/b/; while cat a/b/seed >> a/b/x; do :; done; chmod 000 a/b a; exit 9",
        "tar cf all.tar seed || exit 9; for i in $(seq 64); do tar cf all$i.tar seed all.tar || exit 9; done",
    ],
)
def test_commands_meet_a_full_disk_as_a_failing_write(server: Server, command: str) -> None:
    workspace = server.workspace(diskBytes=16 * MIB)
    workspace.write("seed", os.urandom(2 * MIB))
    output = workspace.bash(command)
    assert output["exitCode"] != 0
    assert "too large" in output["stderr"].lower()
    assert on_disk(server, workspace) <= 20 * MIB
    assert workspace.write("more", b"x" * (12 * MIB)).code == "tool.no_space"
    assert workspace.bash("chmod 755 a; chmod 755 a/b; rm -rf *; ls -A")["stdout"] == ""
    assert workspace.write("more", b"x" * MIB).kind == "completed"


def test_side_by_side_writers_share_one_limit(server: Server) -> None:
    workspace = server.workspace(diskBytes=16 * MIB)
    workspace.write("seed", os.urandom(MIB))
    with ThreadPoolExecutor(6) as threads:
        outputs = list(threads.map(lambda n: workspace.bash(f"while cat seed >> f{n}; do :; done"), range(6)))
    assert all("too large" in output["stderr"].lower() for output in outputs)
    assert on_disk(server, workspace) <= 24 * MIB


def test_what_is_measured_counts_entries_and_links_once_and_holes_not(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "data").write_bytes(b"x" * 10_000)
    os.link(tmp_path / "d" / "data", tmp_path / "again")
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(10 << 30)
    (tmp_path / "link").symlink_to("/usr")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "hidden").write_bytes(b"x" * 20_000)
    (tmp_path / "closed").chmod(0)
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        # d, data, sparse, link, closed, hidden: the two files in whole blocks, the rest one block each
        assert ledger.measured(root) == 4 * 4096 + 3 * 4096 + 5 * 4096
        assert (tmp_path / "closed").stat().st_mode & 0o777 == 0
    finally:
        os.close(root)


def test_two_processes_see_one_sum(tmp_path: Path) -> None:
    page, root = ledger.make(), os.open(tmp_path, os.O_RDONLY)
    try:
        one, two = ledger.Ledger(page, 0, root), ledger.Ledger(page, 1, root)
        assert one.used() == two.used() == 0
        one.add(5000)
        two.add(300)
        assert one.used() == two.used() == 5300
        (tmp_path / "f").write_bytes(b"x")
        assert two.measure() == one.used() == 4096
        one.add(1)
        assert two.used() == 4097
    finally:
        os.close(page)
        os.close(root)


def test_what_has_no_name_yet_counts_through_a_walk_and_ends_with_its_process(tmp_path: Path) -> None:
    """No walk of the tree finds a file that is being written."""
    page, root = ledger.make(), os.open(tmp_path, os.O_RDONLY)
    try:
        one, two = ledger.Ledger(page, 0, root), ledger.Ledger(page, 1, root)
        one.hold(5000)
        two.hold(300)
        assert two.measure() == one.used() == 5300
        (tmp_path / "f").write_bytes(b"x" * 5000)
        one.settle()
        assert one.used() == 5300
        assert one.measure() == 8192 + 300
        ledger.let_go(page, 1)
        assert one.used() == 8192
    finally:
        os.close(page)
        os.close(root)


def test_files_written_at_one_moment_share_the_limit(server: Server) -> None:
    """E-03: what others write right now counts: of twelve files of 3 MiB hardly more than three fit into 10 MiB."""
    workspace = server.workspace(diskBytes=10 << 20)
    workspace.write("zero", b"x")
    answers: list[Answer] = []
    content = b"x" * (3 << 20)
    writers = [
        threading.Thread(target=lambda number=number: answers.append(workspace.write(f"f{number}", content)))
        for number in range(12)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    taken = [answer for answer in answers if answer.kind == "completed"]
    assert 1 <= len(taken) <= 4
    assert {answer.code for answer in answers if answer.kind == "failed"} == {"tool.no_space"}
    assert workspace.bash("rm -f f*; ls")["stdout"] == "zero\n"
