"""The file tools of the virtual Engine, through its socket."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest

from environments.compute.contract import Answer, NotAccepted
from tests.compute.virtual.support import Server, Workspace


def code(answer: Answer) -> str | None:
    assert answer.kind == "failed", answer
    return answer.code


def test_the_workspace_is_made_by_the_first_call(server: Server) -> None:
    """E-03: nothing is there before the first call, a folder that bears the row's uid after it."""
    workspace = server.workspace()
    assert workspace.uid not in _uids(workspace)
    assert workspace.bash("ls -A /workspace")["stdout"] == ""
    assert workspace.uid in _uids(workspace)


def _uids(workspace: Workspace) -> list[str]:
    output = workspace.call("list_workspaces").output
    assert output is not None
    found = output["workspaces"]
    assert isinstance(found, dict)
    return list(found)


def test_write_then_read_gives_the_same_bytes(workspace: Workspace) -> None:
    content = bytes(range(256)) * 5000
    written = workspace.write("a/b.bin", content)
    assert written.output == {
        "path": "a/b.bin",
        "size": len(content),
        "sha256": f"sha256:{sha256(content).hexdigest()}",
        "created": True,
    }
    assert workspace.write("a/b.bin", content).output == {**written.output, "created": False}
    got = bytearray()
    read = workspace.call("read", {"path": "a/b.bin", "offset": 0, "limit": None}, on_data=got.extend)
    assert got == content
    assert read.output is not None
    assert read.output["eof"] is True


def test_read_tool_tells_text_from_bytes(workspace: Workspace) -> None:
    workspace.write("text", "héllo".encode())
    assert workspace.read("text").output == {
        "path": "text", "size": 6, "offset": 0, "length": 6, "eof": True, "encoding": "utf-8", "content": "héllo",
    }  # fmt: skip
    half = workspace.read("text", offset=2, limit=2).output
    assert half is not None
    assert (half["encoding"], half["content"], half["eof"]) == ("base64", "qWw=", False)


def test_list_stat_move_remove(workspace: Workspace) -> None:
    workspace.write("old/x", b"1")
    workspace.write("old/deep/y", b"22")
    listed = workspace.call("list", {"path": ".", "recursive": True}).output
    assert listed is not None
    assert isinstance(listed["entries"], list)
    assert [entry["path"] for entry in listed["entries"]] == ["old", "old/deep", "old/deep/y", "old/x"]
    assert listed["path"] == "/workspace"
    assert workspace.call("move", {"from": "old/x", "to": "x"}).output == {"from": "old/x", "to": "x"}
    stat = workspace.call("stat", {"path": "x"}).output
    assert stat is not None
    assert (stat["type"], stat["size"], stat["mode"]) == ("file", 1, "0644")
    assert workspace.call("remove", {"path": "old", "recursive": True}).output == {"path": "old", "removed": 3}


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("read", {"path": "none"}, "tool.not_found"),
        ("read", {"path": "folder"}, "tool.is_directory"),
        ("list", {"path": "file"}, "tool.not_directory"),
        ("stat", {"path": "file/below"}, "tool.not_directory"),
        ("remove", {"path": "folder"}, "tool.not_empty"),
        ("remove", {"path": "."}, "tool.permission"),
        ("move", {"from": "file", "to": "folder"}, "tool.exists"),
        ("move", {"from": "none", "to": "x"}, "tool.not_found"),
        ("read", {"path": "../../etc/passwd"}, "tool.path_escape"),
        ("read", {"path": "/etc/passwd"}, "tool.path_escape"),
        ("write", {"path": "big", "mode": "0644", "maxBytes": 3}, "tool.too_large"),
        ("write", {"path": "none/file", "mode": "0644"}, "tool.not_found"),
    ],
)
def test_failures_have_their_codes(workspace: Workspace, op: str, args: dict[str, object], expected: str) -> None:
    workspace.write("folder/x", b"1")
    workspace.write("file", b"1")
    assert (
        code(workspace.call(op, args, body=b"four" if op == "write" else None, on_data=lambda data: None)) == expected
    )


def test_a_write_that_failed_leaves_nothing(workspace: Workspace) -> None:
    workspace.write("kept", b"before")
    assert code(workspace.write("kept", b"longer than allowed", maxBytes=3)) == "tool.too_large"
    assert workspace.bash("cat kept; ls -A")["stdout"] == "beforekept\n"


def test_parallel_writes_into_one_new_folder_all_succeed(workspace: Workspace) -> None:
    barrier = threading.Barrier(32)

    def write(number: int) -> Answer:
        barrier.wait()
        return workspace.write(f"a/b/c/f{number}", b"x" * number)

    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(write, range(32)))
    assert [answer.output["size"] for answer in answers if answer.output] == list(range(32))
    listed = workspace.call("list", {"path": "a/b/c"}).output
    assert listed is not None
    assert isinstance(listed["entries"], list)
    assert len(listed["entries"]) == 32


def test_a_list_too_long_for_one_result_is_cut_and_says_so(server: Server, workspace: Workspace) -> None:
    workspace.write(f"{'d' * 250}/{'e' * 250}/first", b"")
    folder = server.root / workspace.uid / "workspace" / ("d" * 250) / ("e" * 250)
    for number in range(8000):
        (folder / f"{'n' * 240}{number}").touch()
    listed = workspace.call("list", {"path": ".", "recursive": True}).output
    assert listed is not None
    assert isinstance(listed["entries"], list)
    assert listed["truncated"] is True
    assert 3000 < len(listed["entries"]) < 8000


@pytest.mark.parametrize("uid", ["../other", "", "x", "00000000-0000-4000-8000-00000000000A", "../" * 8 + "etc"])
def test_only_uids_name_workspaces(server: Server, uid: str) -> None:
    """E-256: what is not a UUID never becomes a path."""
    workspace = Workspace(server.channel, uid, {})
    for op, args in [("stat", {"path": "."}), ("drop", {}), ("close", {})]:
        with pytest.raises(NotAccepted):
            workspace.call(op, args)


@pytest.mark.parametrize(
    ("op", "args"),
    [("bash", {"command": 3}), ("read", {"path": None}), ("write", {"path": "a", "mode": "9"}), ("fly", {})],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    workspace: Workspace, op: str, args: dict[str, object]
) -> None:
    with pytest.raises(NotAccepted, match="bad_request"):
        workspace.call(op, args)
