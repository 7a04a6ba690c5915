"""The file tools on a tree of the host: results, failures, links, and trees that change while they are walked."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.compute.engine import removal, tree
from environments.compute.engine.paths import normalise
from environments.compute.engine.tree import Tree
from environments.compute.engine.wire import ClientGone, ToolError
from environments.compute.local import host


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def files(root: Path) -> Iterator[Tree]:
    files = Tree(root)
    before = len(os.listdir("/proc/self/fd"))
    yield files
    assert len(os.listdir("/proc/self/fd")) == before, "a handle was left open"
    files.close()


@pytest.fixture(params=["no name", "a name"])
def writer(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    """Writes to files without a name, or to named ones as where the file system or /proc gives nothing else."""
    if request.param == "a name":
        monkeypatch.setattr(tree, "open_handles", lambda: None)
    files = Tree(root)
    yield files
    files.close()


def code_of(call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(ToolError) as caught:
        call(*args, **kwargs)  # type: ignore[operator]
    return caught.value.code


def content(files: Tree, path: str, offset: int = 0, limit: int | None = None) -> bytes:
    pieces: list[bytes] = []
    files.read(path, offset, limit, pieces.append)
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("a.txt", "a.txt"), ("/workspace/a.txt", "a.txt"), ("./a//b/../c/", "a/c"), ("/workspace", ""), (".", ""),
        ("", ""), ("/workspace/../workspace/a", "a"), ("../workspace/a", "a"), ("/../../workspace/a", "a"),
        ("a/../..//workspace", ""),
    ],
)  # fmt: skip
def test_paths_are_normalised(asked: str, shown: str) -> None:
    assert normalise(asked) == shown


@pytest.mark.parametrize(
    "path", ["..", "/etc/passwd", "/", "a/../../x", "/workspacex", "/workspace/..", "../etc", "//etc"]
)
def test_paths_that_lead_out_are_refused(files: Tree, path: str) -> None:
    """Environments 9.3: `tool.path_escape`."""
    for call in (files.stat, files.list, files.remove):
        assert code_of(call, path) == "tool.path_escape"
    assert code_of(files.write, path, [b"x"]) == "tool.path_escape"
    assert code_of(files.move, path, "x") == "tool.path_escape"


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_text_that_is_no_path_fails(files: Tree, path: str) -> None:
    assert code_of(files.stat, path) == "tool.failed"


def test_write_and_read_slices(files: Tree) -> None:
    made = files.write("a.txt", [b"he", b"llo"], mode=0o600)
    assert made == {
        "path": "a.txt", "size": 5, "created": True,
        "sha256": "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    }  # fmt: skip
    assert files.write("a.txt", [b"hello"])["created"] is False
    assert content(files, "a.txt", 1, 3) == b"ell"
    answer = files.read("a.txt", 4, 10, lambda data: None)
    assert (answer["size"], answer["offset"], answer["length"], answer["eof"]) == (5, 4, 1, True)
    assert files.read("a.txt", 9, None, lambda data: None)["length"] == 0
    assert files.stat("a.txt")["mode"] == "0644"


def test_a_mode_never_sets_ids(files: Tree, root: Path) -> None:
    files.write("f", [b""], mode=0o6777)
    assert (root / "f").stat().st_mode & 0o7777 == 0o777


def test_links_inside_work_wherever_the_root_is(files: Tree, root: Path) -> None:
    files.write("dir/a", [b"x"], make_parents=True)
    for name, target in {
        "abs": "/workspace/dir/a",
        "rel": "dir/a",
        "up": "../workspace/dir/a",
        "into": "/workspace/dir",
    }.items():
        (root / name).symlink_to(target)
    assert {content(files, path) for path in ("abs", "rel", "up", "into/a")} == {b"x"}
    assert files.write("abs", [b"new"])["created"] is False
    assert (root / "dir" / "a").read_bytes() == b"new"
    assert (root / "abs").is_symlink()
    assert files.stat("abs") | {"modifiedAt": ""} == {
        "path": "abs", "type": "link", "size": 16, "mode": "0777", "modifiedAt": "", "target": "/workspace/dir/a",
    }  # fmt: skip
    assert [entry["path"] for entry in files.list("into")["entries"]] == ["into/a"]


def test_links_out_and_loops(files: Tree, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for name, target in {
        "out": "/etc/passwd",
        "near": "../secret",
        "real": str(tmp_path / "secret"),
        "loop": "loop",
    }.items():
        (root / name).symlink_to(target)
    for name in ("out", "near", "real"):
        assert code_of(content, files, name) == "tool.path_escape"
        assert code_of(files.write, name, [b"x"]) == "tool.path_escape"
        assert files.remove(name)["removed"] == 1
    assert code_of(content, files, "loop") == "tool.failed"
    assert (tmp_path / "secret").read_text() == "secret"


def test_wrong_types_have_their_codes(files: Tree, root: Path) -> None:
    files.write("dir/f", [b""], make_parents=True)
    os.mkfifo(root / "fifo")
    assert code_of(content, files, "none") == "tool.not_found"
    assert code_of(content, files, "dir") == "tool.is_directory"
    assert code_of(content, files, "dir/f/x") == "tool.not_directory"
    assert code_of(content, files, "fifo") == "tool.failed"  # and does not wait for a writer
    assert code_of(files.write, "fifo", [b""]) == "tool.failed"
    assert code_of(files.write, "dir", [b""]) == "tool.is_directory"
    assert code_of(files.write, "no/f", [b""]) == "tool.not_found"
    assert code_of(files.list, "dir/f") == "tool.not_directory"
    assert code_of(files.remove, "dir") == "tool.not_empty"
    assert code_of(files.remove, "none", recursive=True) == "tool.not_found"
    assert code_of(files.write, "x" * 300, [b""]) == "tool.failed"
    assert files.stat("fifo")["type"] == "other"


def test_the_root_stays(files: Tree) -> None:
    assert code_of(files.remove, ".", recursive=True) == "tool.permission"
    assert code_of(files.move, "/workspace", "x") == "tool.permission"
    assert files.stat("/workspace")["path"] == "/workspace"


def test_move_replaces_a_file_and_never_a_folder(files: Tree, root: Path) -> None:
    for name in ("a", "b", "dir/c"):
        files.write(name, [name.encode()], make_parents=True)
    assert files.move("a", "b") == {"from": "a", "to": "b"}
    assert content(files, "b") == b"a"
    assert code_of(files.move, "b", "dir") == "tool.exists"
    assert code_of(files.move, "dir", "dir/inner") == "tool.failed"
    assert code_of(files.move, "dir", "b") == "tool.not_directory"
    assert code_of(files.move, "none", "x") == "tool.not_found"
    assert files.move("dir", "moved")["to"] == "moved"
    assert sorted(os.listdir(root)) == ["b", "moved"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(writer: Tree, root: Path) -> None:
    files = writer
    files.write("f", [b"old"])

    def broken() -> Iterator[bytes]:
        yield b"new"
        raise ClientGone

    with pytest.raises(ClientGone):
        files.write("f", broken())
    assert code_of(files.write, "f", [b"12345", b"6"], max_bytes=5) == "tool.too_large"
    assert files.write("f", [b"12345"], max_bytes=5)["size"] == 5
    assert os.listdir(root) == ["f"]


@pytest.mark.parametrize("name", ["new", "old"])
def test_a_process_killed_inside_a_write_leaves_nothing(files: Tree, root: Path, name: str) -> None:
    """The old file stays whole, and the list shows no other."""
    (root / "old").write_bytes(b"old")

    def content_until_killed() -> Iterator[bytes]:
        yield b"x" * 1_000_000
        assert os.listdir(root) == ["old"]
        os.kill(os.getpid(), signal.SIGKILL)

    if not (child := os.fork()):
        try:
            Tree(root).write(name, content_until_killed())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert os.listdir(root) == ["old"]
    assert content(files, "old") == b"old"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_came_to_the_name_during_a_write_is_replaced_and_never_followed(
    writer: Tree, root: Path, tmp_path: Path, kind: str
) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"outside")

    def content_and_a_rival() -> Iterator[bytes]:
        yield b"ours"
        if kind == "file":
            (root / "f").write_bytes(b"theirs")
        else:
            (root / "f").symlink_to(outside)

    assert writer.write("f", content_and_a_rival(), mode=0o640)["created"] is True
    assert os.listdir(root) == ["f"]
    assert not (root / "f").is_symlink()
    assert (root / "f").read_bytes() == b"ours"
    assert (root / "f").stat().st_mode & 0o7777 == 0o640
    assert outside.read_bytes() == b"outside"


def test_a_full_disk_is_no_space_and_leaves_nothing(root: Path, files: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pain 21: ENOSPC is `tool.no_space`; the temporary file is gone."""
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(os, "write", lambda _handle, data: os.pwrite(full, data, 0))
    assert code_of(files.write, "f", [b"x"]) == "tool.no_space"
    os.close(full)
    assert os.listdir(root) == []


def test_the_limit_on_file_size_is_too_large(files: Tree, root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        assert code_of(files.write, "f", [b"x" * 20]) == "tool.too_large"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert os.listdir(root) == []


def test_what_the_user_may_not_is_permission(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from environments.compute.engine.tree import Tree\n"
        "from environments.compute.engine.wire import ToolError\n"
        "root = os.open(sys.argv[1], os.O_RDONLY)\n"
        "os.chmod('closed', 0)\n"
        "if os.geteuid() == 0:\n"
        "    os.setresuid(54321, 54321, 54321)\n"
        "for call in (Tree(root).list, Tree(root).stat):\n"
        "    try:\n"
        "        call('closed/f' if call.__name__ == 'stat' else 'closed')\n"
        "    except ToolError as error:\n"
        "        print(error.code)\n"
    )
    (tmp_path / "closed").mkdir()
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(host.CODE_ROOT)], cwd=tmp_path, capture_output=True, text=True
    )
    (tmp_path / "closed").chmod(0o700)
    assert result.stdout.split() == ["tool.permission"] * 2, result.stderr


def test_lists_are_sorted_by_whole_path(files: Tree, root: Path) -> None:
    for path in ("a/b", "a.txt", "a-b", "b", "a/a/z", "Z"):
        files.write(path, [b""], make_parents=True)
    listed = files.list(".", recursive=True)
    paths = [entry["path"] for entry in listed["entries"]]
    assert paths == sorted(paths) == ["Z", "a", "a-b", "a.txt", "a/a", "a/a/z", "a/b", "b"]
    assert listed["path"] == "/workspace"
    assert listed["truncated"] is False
    assert [entry["path"] for entry in files.list("a")["entries"]] == ["a/a", "a/b"]


def test_a_list_ends_at_its_limit(files: Tree, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIST_MAX: the first entries by path, and `truncated`."""
    monkeypatch.setattr(tree, "LIST_MAX", 5)
    for number in range(60):
        (root / f"{number:02}").touch()
    listed = files.list(".")
    assert [entry["path"] for entry in listed["entries"]] == ["00", "01", "02", "03", "04"]
    assert listed["truncated"] is True
    for number in range(5, 60):
        (root / f"{number:02}").unlink()
    assert files.list(".")["truncated"] is False


def test_names_that_are_not_utf_8_are_shown_and_do_not_break_the_list(files: Tree, root: Path) -> None:
    os.mkdir(os.fsencode(root) + b"/n\xff\xfe")
    (root / "ünï").touch()
    assert [entry["path"] for entry in files.list(".")["entries"]] == ["n\ufffd\ufffd", "ünï"]


def test_deep_trees_are_listed_in_part_and_removed_whole(files: Tree, root: Path) -> None:
    here = os.open(root, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    listed = files.list(".", recursive=True)
    assert listed["truncated"] is True
    assert len(listed["entries"]) > 200
    assert files.remove("d", recursive=True)["removed"] == 600
    assert os.listdir(root) == []


def test_a_swapped_component_never_leads_out(files: Tree, root: Path, tmp_path: Path) -> None:
    """Between looking and opening, a folder is exchanged for a link: what is found is inside, or nothing."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(b"outside")
    (root / "inside").mkdir()
    (root / "inside" / "f").write_bytes(b"inside")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "name").mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for source in ("link", "inside"):
                os.rename(root / "name", root / "old")
                os.rename(root / source, root / "name")
                os.rename(root / "name", root / source)
                os.rename(root / "old", root / "name")

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[bytes | str] = set()
    try:
        for _ in range(1500):
            try:
                seen.add(content(files, "name/f"))
                files.write("name/w", [b"x"])
            except ToolError as error:
                seen.add(error.code)
    finally:
        stop.set()
        thread.join(10)
    assert seen <= {b"inside", "tool.not_found", "tool.path_escape", "tool.not_directory"}
    assert sorted(os.listdir(tmp_path / "outside")) == ["f"]


def test_removal_opens_what_its_owner_closed_when_forced(root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "f").touch()
    (root / "a" / "b").chmod(0)
    (root / "a").chmod(0)
    handle = os.open(root, os.O_RDONLY)
    assert removal.remove_tree(handle, "a", force=True) == 3
    os.close(handle)
