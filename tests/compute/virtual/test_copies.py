"""Disk copies of virtual workspaces: confined, limited, and swapped in as a whole."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from environments.compute.contract import Interrupted, NotAccepted
from environments.compute.copying import CopyFailed, NewEntry, Target, hold, list_tree, read_files, swap, write_tree
from tests.compute.copying.support import MIB, copy, look, paths_of
from tests.compute.virtual.support import LIMITS, Server, Workspace, background, eventually

Entries = list[tuple[NewEntry, Iterable[bytes]]]
ONE: Entries = [(NewEntry(b"one", size=3), [b"one"])]
TWO: Entries = [(NewEntry(b"d", "dir", 0o755), ()), (NewEntry(b"d/two", size=3), [b"two"])]


def target_of(workspace: Workspace, **more: object) -> Target:
    copy = f"op_{uuid.uuid4().hex}"
    return replace(Target(workspace.channel, 0, copy, 1, workspace.uid, workspace.limits), **more)


def names(target: Target) -> list[bytes]:
    with list_tree(target) as listing:
        return paths_of(listing)


def leftovers(server: Server) -> list[str]:
    return sorted(name for name in os.listdir(server.root) if name.startswith("."))


def test_a_workspace_comes_back_the_same(server: Server) -> None:
    """E-277: content, modes, links, holes and attributes of a workspace are copied by its confined process."""
    source, second = server.workspace(), server.workspace()
    source.bash("mkdir -p a/shut a-b; echo hello > a/file; ln -s ../nowhere a/link; echo x > a/shut/in; echo y > a-b/z")
    home = server.root / source.uid / "workspace"
    with open(home / "sparse", "wb") as file:
        file.seek(8 * MIB)
        file.write(b"end")
    os.link(home / "a" / "file", home / "second")
    os.setxattr(home / "a", "user.key", b"value")
    for path in home.rglob("*"):
        if os.geteuid() == 0:
            os.chown(path, home.stat().st_uid, home.stat().st_gid, follow_symlinks=False)
    (home / "a" / "file").chmod(0o4711)
    (home / "a" / "shut").chmod(0)
    origin, copied = target_of(source), target_of(second)
    with hold(origin):
        written = copy(origin, copied)
    assert written.refused_xattrs == 0
    assert look(server.root / second.uid / "workspace") == look(home)
    assert second.bash("cat a/file")["stdout"] == "hello\n"


def test_a_workspace_that_nobody_made_is_an_empty_disk(workspace: Workspace) -> None:
    assert names(target_of(workspace)) == []


def test_deep_trees_are_copied_in_a_confined_process(server: Server) -> None:
    """E-277: a tree of 400 levels is listed and written by processes of few handles."""
    deep: Entries = []
    path = b""
    for _ in range(400):
        path = path + b"/deeper" if path else b"deeper"
        deep.append((NewEntry(path, "dir", 0o700), ()))
    deep.append((NewEntry(path + b"/file", size=1), [b"x"]))
    first, second = target_of(server.workspace()), target_of(server.workspace())
    write_tree(first, deep)
    copy(first, second)
    assert names(second) == [entry.path for entry, _ in deep]
    for target in (first, second):
        write_tree(target, [])


@pytest.mark.parametrize("stage", [None, "s1"], ids=["in its place", "beside it"])
def test_what_does_not_fit_the_limit_is_refused(server: Server, stage: str | None) -> None:
    """E-129: a restored disk counts against diskBytes, by data and by entries; too large a one leaves nothing."""
    workspace = server.workspace(diskBytes=MIB)
    workspace.write("before", b"before")
    large: Entries = [(NewEntry(b"large", size=2 * MIB), [bytes(2 * MIB)])]
    many: Entries = [(NewEntry(b"%04d" % number), ()) for number in range(400)]
    fits: Entries = [(NewEntry(b"%04d" % number), ()) for number in range(200)]
    sparse: Entries = [(NewEntry(b"sparse", size=1 << 30, extents=((0, 3),)), [b"abc"])]
    for number, entries in enumerate((large, many)):
        with pytest.raises(CopyFailed) as failure:
            write_tree(target_of(workspace), entries, stage=stage and f"{stage}-{number}")
        assert failure.value.code == "tool.no_space"
    assert names(target_of(workspace)) == ([] if stage is None else [b"before"])
    for number, entries in enumerate((fits, sparse)):
        write_tree(target_of(workspace), entries, stage=stage and f"{stage}+{number}".replace("+", "_"))
    workspace.call("drop")


def test_a_written_workspace_is_counted_from_its_content(workspace: Workspace) -> None:
    """The limit goes on holding after a copy: what was there before no longer counts, what was written does."""
    workspace.write("old", bytes(40 * MIB))
    write_tree(target_of(workspace), [(NewEntry(b"new", size=30 * MIB), [bytes(30 * MIB)])])
    assert workspace.write("more", bytes(20 * MIB)).kind == "completed"
    assert workspace.write("too much", bytes(20 * MIB)).code == "tool.no_space"


def test_copies_of_one_workspace_do_not_block_another(server: Server) -> None:
    """A long copy has a process of its own; calls of other workspaces, and of this one, are served beside it."""
    workspace, other = server.workspace(), server.workspace()
    workspace.write("file", bytes(8 * MIB))
    files = read_files(target_of(workspace), [b"file"])
    file = next(files)  # its Engine waits for us to take the data
    assert other.bash("echo quick")["stdout"] == "quick\n"
    assert workspace.bash("echo quick")["stdout"] == "quick\n"
    assert len(b"".join(file.data())) == 8 * MIB


def test_a_copy_can_be_cancelled(workspace: Workspace) -> None:
    workspace.write("file", bytes(8 * MIB))
    cancel = threading.Event()
    files = read_files(target_of(workspace, cancel=cancel), [b"file"])
    file = next(files)
    cancel.set()
    with pytest.raises(CopyFailed) as failure:
        b"".join(file.data())
    assert failure.value.code == "tool.cancelled"


# -------------------------------------------------------------------------------------------------------------- stages


def test_a_stage_takes_the_place_of_the_workspace_at_once(server: Server) -> None:
    """E-130: a restore is written beside the workspace and swapped in; repeating the swap says that it has happened."""
    workspace = server.workspace(diskBytes=64 * MIB)
    workspace.write("old", bytes(50 * MIB))
    target = target_of(workspace)
    write_tree(target, [*TWO, (NewEntry(b"new", size=20 * MIB), [bytes(20 * MIB)])], stage="s-1")
    assert names(target) == [b"old"]
    assert swap(target, "s-1") is True
    assert names(target) == [b"d", b"d/two", b"new"]
    assert workspace.write("more", bytes(30 * MIB)).kind == "completed"
    assert swap(replace(target, attempt=2), "s-1") is False
    assert workspace.bash("cat d/two; ls /workspace")["stdout"] == "twod\nmore\nnew\n"
    eventually(lambda: leftovers(server) == [".lock"])
    write_tree(replace(target, attempt=3), ONE, stage="s-2")
    assert swap(replace(target, attempt=3), "s-2") is True
    assert names(replace(target, attempt=3)) == [b"one"]
    with pytest.raises(CopyFailed) as failure:
        swap(replace(target, attempt=3), "s-1")
    assert failure.value.code == "tool.not_found"


def test_a_late_swap_disturbs_nothing(workspace: Workspace) -> None:
    """E-283: a swap that is repeated when commands run again ends none of them."""
    target = target_of(workspace)
    write_tree(target, ONE, stage="s")
    swap(target, "s")
    with background(lambda: workspace.bash("touch runs; sleep 0.5; cat one")) as outcome:
        eventually(lambda: b"runs" in names(target))
        assert swap(target, "s") is False
    assert outcome[0]["stdout"] == "one"


def test_the_limit_holds_for_the_swapped_in_tree_whatever_ran_before(server: Server) -> None:
    """A command that runs when its workspace is swapped ends; what is counted from there on is the new tree."""
    workspace = server.workspace(diskBytes=64 * MIB)
    target = target_of(workspace)
    with background(lambda: workspace.try_bash("touch runs; sleep 30")) as outcome:
        eventually(lambda: b"runs" in names(target))
        write_tree(target, [(NewEntry(b"new", size=50 * MIB), [bytes(50 * MIB)])], stage="s")
        assert swap(target, "s") is True
    assert isinstance(outcome[0], Interrupted)
    assert workspace.write("too much", bytes(20 * MIB)).code == "tool.no_space"
    assert workspace.write("fits", bytes(8 * MIB)).kind == "completed"


def test_a_stage_makes_a_workspace_that_was_not_there(server: Server) -> None:
    workspace = server.workspace()
    target = target_of(workspace)
    write_tree(target, ONE, stage="s")
    assert not (server.root / workspace.uid).exists()
    assert swap(target, "s") is True
    assert workspace.bash("cat one")["stdout"] == "one"


def test_a_stage_that_was_not_written_to_its_end_is_never_swapped_in(server: Server) -> None:
    """E-130: whatever ends a restore in the middle, the workspace stays what it was."""
    workspace = server.workspace(diskBytes=MIB)
    workspace.write("old", b"old")
    target = target_of(workspace)

    def breaks() -> Iterator[tuple[NewEntry, Iterable[bytes]]]:
        yield from ONE
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_tree(target, breaks(), stage="broken")
    with pytest.raises(CopyFailed):
        write_tree(target, [(NewEntry(b"large", size=2 * MIB), [bytes(2 * MIB)])], stage="full")
    for stage in ("broken", "full", "never"):
        with pytest.raises(CopyFailed) as failure:
            swap(target, stage)
        assert failure.value.code == "tool.not_found"
    assert names(target) == [b"old"]
    write_tree(target, ONE, stage="broken")  # a stage that was not swapped in may be begun again
    assert swap(target, "broken") is True


def test_a_stage_name_is_used_for_one_tree(workspace: Workspace) -> None:
    """A name that was swapped in stands for that tree: nothing else can be mistaken for it."""
    target = target_of(workspace)
    write_tree(target, ONE, stage="s")
    swap(target, "s")
    with pytest.raises(CopyFailed) as failure:
        write_tree(target, TWO, stage="s")
    assert failure.value.code == "tool.exists"


def test_abandoned_stages_go(start: Callable[..., Server]) -> None:
    """Nothing is left of stages that nobody swaps in: the next one, a drop and the next start remove them."""
    server = start()
    workspace, other = server.workspace(), server.workspace()
    first = target_of(workspace)
    write_tree(first, ONE, stage="a")
    write_tree(first, ONE, stage="b")
    write_tree(target_of(other), ONE, stage="c")
    assert leftovers(server) == [".lock", *sorted([f".stage-{workspace.uid}-b", f".stage-{other.uid}-c"])]
    assert workspace.call("drop").output == {"removed": False}
    assert leftovers(server) == [".lock", f".stage-{other.uid}-c"]
    server.stop(signal.SIGKILL)
    server.start()
    eventually(lambda: leftovers(server) == [".lock"])


def test_a_stage_is_outside_of_what_its_workspace_sees(server: Server) -> None:
    """Neither commands nor file tools reach a stage, and a stage does not reach the workspace."""
    workspace = server.workspace()
    workspace.write("old", b"old")
    target = target_of(workspace)
    write_tree(target, [*ONE, (NewEntry(b"out", "link", target=b"/workspace/old"), ())], stage="s")
    assert workspace.bash("find / -name 'one*' 2>/dev/null; ls -a /workspace")["stdout"].split() == ["old"]
    for name in ("../x", "", "a/b", "a" * 65, ".", 5):
        with pytest.raises(NotAccepted):
            write_tree(target, ONE, stage=name)  # type: ignore[arg-type]
    with pytest.raises(NotAccepted), target.call("tree.list", stage="s"):
        pass
    workspace.call("drop")


def test_the_next_attempt_ends_what_the_last_one_writes(server: Server) -> None:
    """E-283: an attempt that slept past its lease changes neither the stage nor the workspace of the next."""
    workspace = server.workspace()
    target = target_of(workspace)
    second = replace(target, attempt=2)

    def slow() -> Iterator[tuple[NewEntry, Iterable[bytes]]]:
        yield NewEntry(b"a", size=MIB), [bytes(MIB)]
        write_tree(second, TWO, stage="s-2")
        for number in range(64):
            yield NewEntry(b"b%02d" % number, size=MIB), [bytes(MIB)]

    with pytest.raises(Interrupted):
        write_tree(target, slow(), stage="s-1")
    for run in (lambda: swap(target, "s-1"), lambda: names(target)):
        with pytest.raises(NotAccepted, match="stale"):
            run()
    assert swap(second, "s-2") is True
    assert names(second) == [b"d", b"d/two"]


def test_calls_without_a_copy_are_refused(workspace: Workspace) -> None:
    for op in ("tree.list", "tree.read", "tree.write", "workspace.swap"):
        with pytest.raises(NotAccepted):
            workspace.call(op, {"stage": "s"})
        with pytest.raises(NotAccepted):
            workspace.call(op, {"stage": "s", "copy": "", "attempt": 1})
    assert LIMITS["diskBytes"] == 64 * MIB
