"""What a hostile workspace can reach: itself."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.compute.virtual.support import Server, Workspace

SECRET = "content of another workspace"


@pytest.fixture
def victim(server: Server) -> Workspace:
    """A workspace with a file that nobody else may see."""
    victim = server.workspace()
    victim.write("secret", SECRET.encode())
    return victim


@pytest.fixture
def links(server: Server, workspace: Workspace, victim: Workspace) -> Path:
    """Links out of a workspace, of every kind, planted from outside as a copied disk could bring them."""
    workspace.write("own", b"own")
    inside = server.root / workspace.uid / "workspace"
    outside = server.root / victim.uid / "workspace"
    for name, target in {
        "absolute": str(outside / "secret"),
        "relative": f"../../{victim.uid}/workspace/secret",
        "folder": str(outside),
        "climb": f"../../{victim.uid}/workspace",
        "rooted": f"/{victim.uid}/workspace/secret",
        "up": "..",
        "root": "/",
        "etc": "/etc",
        "proc": "/proc",
        "twice": "climb/secret",
    }.items():
        (inside / name).symlink_to(target)
    return outside


@pytest.mark.parametrize(
    "command",
    [
        "cat absolute relative rooted twice folder/secret climb/secret",
        "ls -la folder/ climb/ up/ up/..; cat up/../*/workspace/secret",
        "cp -r folder stolen; cat stolen/*; cp absolute stolen2; cat stolen2",
        "cd climb && cat secret; cd /workspace/up && ls; cd .. && ls -la",
        "cat ../../*/workspace/secret /workspace/../../*/workspace/secret; find / -name secret; grep -r content /",
        "find -L . -name 'secret*' -exec cat {} +; tar chf t.tar . && tar xOf t.tar",
        "exec 3<relative; cat <&3; while read l; do echo $l; done < absolute; mapfile a < twice; echo ${a[@]}",
        "source absolute; . relative; bash climb/secret; cat $(readlink absolute) $(realpath relative)",
        "ln -s /workspace/climb c2; ln -s climb/secret c3; cat c2/secret c3; mv climb d; cat d/secret",
    ],
)
def test_links_and_dots_lead_no_command_into_another_workspace(workspace: Workspace, links: Path, command: str) -> None:
    output = workspace.bash(command)
    assert SECRET not in output["stdout"] + output["stderr"]


@pytest.mark.parametrize(
    "command",
    [
        "for f in absolute climb/new up/new twice; do echo pwned > $f; done; echo pwned >> relative",
        "rm -rf folder/ climb/ folder/secret climb/secret; rm -f up/../*/workspace/secret; rmdir climb",
        "cp own climb/secret; mv own folder/secret; tee absolute < own; sed -i s/c/x/ relative; truncate -s 0 absolute",
        "chmod 777 absolute climb; touch -d 2001-01-01 absolute; mkdir climb/d up/d; ln own climb/hard",
    ],
)
def test_no_command_changes_what_lies_outside(server: Server, workspace: Workspace, links: Path, command: str) -> None:
    def snapshot() -> list[tuple[str, int, int, bytes]]:
        found = []
        for path in [links, *sorted(links.iterdir())]:
            status = path.stat()
            found.append((path.name, status.st_mode, status.st_mtime_ns, path.read_bytes() if path.is_file() else b""))
        return found

    before = snapshot()
    workspace.bash(command)
    assert snapshot() == before
    assert os.listdir(server.root / workspace.uid) == ["workspace"]


@pytest.mark.parametrize(
    "path",
    [
        "absolute", "relative", "rooted", "twice", "folder/secret", "climb/secret", "root/etc/passwd", "etc/passwd",
        "proc/self/environ", "up/x", "/workspace/../etc/passwd",
    ],
)  # fmt: skip
@pytest.mark.parametrize("op", ["read", "write", "list", "stat-through", "move-to", "remove-through"])
def test_no_file_tool_follows_a_link_out(workspace: Workspace, links: Path, op: str, path: str) -> None:
    """E-237: a link that leads out fails with ``tool.path_escape``."""
    calls: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "read": ("read", {"path": path}, {"on_data": lambda data: None}),
        "write": ("write", {"path": f"{path}/x", "mode": "0644", "createParents": True}, {"body": b"pwned"}),
        "list": ("list", {"path": path, "recursive": True}, {}),
        "stat-through": ("stat", {"path": f"{path}/x"}, {}),
        "move-to": ("move", {"from": "own", "to": f"{path}/x"}, {}),
        "remove-through": ("remove", {"path": f"{path}/x", "recursive": True}, {}),
    }
    name, args, options = calls[op]
    answer = workspace.call(name, args, **options)
    assert answer.code == "tool.path_escape", answer
    assert sorted(entry.name for entry in links.iterdir()) == ["secret"]


def test_the_host_shows_neither_files_nor_settings_nor_processes(server: Server, workspace: Workspace) -> None:
    marker = f"{os.getpid()}-{server.root}"
    output = workspace.bash(
        "cat /etc/passwd /etc/shadow /proc/*/environ /proc/*/cmdline /proc/self/maps /proc/self/status"
        " /proc/mounts; env; ps aux; ls -la / /proc /root /home /tmp /var /proc/self/fd; hostname; uname -a; df; id"
    )
    shown = output["stdout"] + output["stderr"]
    for private in (marker, str(server.root), "PYTHONPATH", "environments.compute", "root:x:0:0"):
        assert private not in shown


@pytest.mark.parametrize(
    "command",
    [
        "curl -sS -m 3 http://127.0.0.1:{port}/",
        "wget -q -O- http://127.0.0.1:{port}/",
        "http GET http://localhost:{port}/",
        "echo x > /dev/tcp/127.0.0.1/{port}",
        "exec 3<>/dev/tcp/127.0.0.1/{port}; echo x >&3",
    ],
)
def test_no_command_reaches_the_network(workspace: Workspace, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        workspace.bash(command.format(port=listener.getsockname()[1]), timeout_ms=4000)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    "command", ["python3 -c 'print(1)'", "sqlite3 :memory: 'select 1'", "node -e 1", "ssh a true", "gcc -v"]
)
def test_there_is_no_other_language_and_no_program_of_the_host(workspace: Workspace, command: str) -> None:
    assert workspace.bash(command)["exitCode"] in (126, 127)


def test_the_processes_that_run_commands_have_no_rights(server: Server, workspace: Workspace) -> None:
    """E-256: started as root, neither server nor workspace process stays root, and neither has a setting of ours."""
    workspace.bash("true")
    assert server.process is not None
    zygote, *workers = server.descendants()
    assert workers
    for pid in workers:
        status = _status(pid)
        assert int(status["CapEff"], 16) == 0 or _is_spare(pid)
        assert int(status["CapPrm"], 16) & ~(1 << 18) == 0
        assert status["NoNewPrivs"] == "1"
    for pid in (server.process.pid, zygote, *workers):
        assert "0" not in _status(pid)["Uid"].split() or os.geteuid() != 0
    names = {line.partition(b"=")[0] for line in Path(f"/proc/{zygote}/environ").read_bytes().split(b"\0") if line}
    assert names == {b"PATH", b"PYTHONPATH", b"LC_ALL", b"MALLOC_ARENA_MAX"}


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _is_spare(pid: int) -> bool:
    """A process that waits for its workspace has no call filter yet."""
    return _status(pid)["Seccomp"] == "0"


def test_folders_and_socket_are_closed_to_others(server: Server, workspace: Workspace) -> None:
    workspace.bash("true")
    for path in (server.root, server.root / workspace.uid, server.socket.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o600
