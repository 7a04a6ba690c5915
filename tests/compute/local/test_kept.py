"""Kept disks: clones of volumes' images from which new volumes start without a copy of their bytes."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from environments.compute.local import adopt, image, kept, reflink
from environments.compute.local.driver import LocalDriver
from environments.compute.local.kept import Shelf
from environments.compute.local.places import Place
from tests.compute.local.cow import cow_folder
from tests.compute.local.helpers import (
    INSTALLATION,
    NAME,
    OTHER,
    Client,
    ControlPlane,
    eventually,
    joined,
    loops,
    own_pods,
    spec,
)

# ------------------------------------------------------------------------------------------------ anywhere


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """A shelf whose clones are copies, with one image on it."""
    monkeypatch.setattr(reflink, "why_not", lambda root: None)
    monkeypatch.setattr(image, "why_not", lambda root: None)
    made = Shelf(tmp_path)
    (tmp_path / ".kept").mkdir()
    return made


def put(shelf: Shelf, name: str) -> Path:
    path = shelf._folder / name
    path.write_bytes(b"image")
    return path


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a.b", "a.1.2", "a\n", "a b", "x" * 101, "ö"])
def test_a_name_that_is_none_is_refused(shelf: Shelf, name: str) -> None:
    """No key leads out of the folder of kept disks."""
    for act in (shelf.path, lambda name: shelf.settle(name, None), lambda name: shelf.drop([name])):
        with pytest.raises(ValueError, match="is no name of a kept disk"):
            act(name)


def test_a_draft_is_found_by_nobody_until_it_is_settled(shelf: Shelf) -> None:
    put(shelf, "op_1.2.draft")
    assert (shelf.path("op_1"), shelf.tidy()) == (None, frozenset())
    shelf.settle("op_1.2", "op_1")
    found = shelf.path("op_1")
    assert found is not None
    assert found.read_bytes() == b"image"
    put(shelf, "op_1.3.draft")
    shelf.settle("op_1.3", None)
    shelf.settle("op_1.4", "op_9")
    assert [path.name for path in shelf._folder.iterdir()] == ["op_1.img"]


def test_old_drafts_go_and_what_is_dropped(shelf: Shelf) -> None:
    put(shelf, "op_1.img"), put(shelf, "op_2.img"), put(shelf, "op_3.1.draft")
    old = put(shelf, "op_4.1.draft")
    os.utime(old, (1, time.time() - kept.DRAFT_SECONDS - 60))
    assert shelf.tidy() == {"op_1", "op_2"}
    shelf.drop(["op_2", "op_7"])
    assert sorted(path.name for path in shelf._folder.iterdir()) == ["op_1.img", "op_3.1.draft"]


def test_all_kept_disks_go_while_the_hosts_disk_is_nearly_full(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold the room of what pods remove."""
    put(shelf, "op_1.img")
    found = os.statvfs(shelf._root)
    size = found.f_blocks * found.f_frsize
    monkeypatch.setattr(kept, "free_bytes", lambda root: size // kept.TIGHT + 1)
    assert shelf.tidy() == {"op_1"}
    monkeypatch.setattr(kept, "free_bytes", lambda root: size // kept.TIGHT - 1)
    assert shelf.tidy() == frozenset()
    assert list(shelf._folder.iterdir()) == []


def test_nothing_is_kept_of_a_folder_or_without_room(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(shelf._root, "sbx-a-g0")
    monkeypatch.setattr(Shelf, "_clone", lambda *_: True)
    assert not shelf.keep("sbx-a-g0", "op_1.1")
    place.volume.mkdir(parents=True)
    place.image.write_bytes(bytes(4096))
    assert shelf.keep("sbx-a-g0", "op_1.1")
    monkeypatch.setattr(kept, "free_bytes", lambda root: 4095)
    put(shelf, "op_1.1.draft")
    assert not shelf.keep("sbx-a-g0", "op_1.1")
    assert list(shelf._folder.iterdir()) == []


@pytest.mark.parametrize("alive", [[False], [True, False], [True, True]])
def test_a_clone_counts_only_while_its_pod_lived(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, alive: list[bool]
) -> None:
    """Another process under its number could have another file system."""
    place = Place(shelf._root, "sbx-a-g0")
    place.volume.mkdir(parents=True)
    place.image.write_bytes(bytes(4096))
    assert not shelf.keep("sbx-a-g0", "op_1.1"), "no pod"
    place.write_pod({"engine": {"pid": 1, "startTime": 1}})
    answers = iter(alive)
    monkeypatch.setattr(kept, "is_alive", lambda pid, started: next(answers))
    monkeypatch.setattr(kept, "_syncing", lambda folder, still: still())
    monkeypatch.setattr(reflink, "clone", lambda source, target: target.write_bytes(source.read_bytes()))
    assert shelf.keep("sbx-a-g0", "op_1.1") == all(alive)
    assert [path.name for path in shelf._folder.iterdir()] == ["op_1.1.draft"] * all(alive)


def test_a_host_that_clones_no_files_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        tries.append(target)
        raise OSError(95, "Operation not supported")

    tries: list[Path] = []
    monkeypatch.setattr(reflink, "clone", refuse)
    assert "Operation not supported" in (reflink.why_not(tmp_path / "pods") or "")
    assert Shelf(tmp_path / "pods").way() == "portable"
    assert len(tries) == 1
    assert list((tmp_path / "pods").iterdir()) == []
    monkeypatch.setattr(reflink, "clone", lambda source, target: target.write_bytes(b"other"))
    assert reflink.why_not(tmp_path / "other") == "a clone is not what was cloned"


def test_an_adopted_tree_is_what_an_import_would_make(tmp_path: Path) -> None:
    """Owners, modes with their set-id bits, times, depth; no socket, no pipe; an empty harness; links not followed."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    work, outside = tmp_path / "workspace", tmp_path / "outside"
    deep = work / "/".join(["d" * 200] * 40)
    before = Path.cwd()
    try:
        for folder in (work, tmp_path / "harness" / "state"):
            folder.mkdir(parents=True)
        os.chdir(work)
        for _ in range(40):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        Path("deep").write_text("deep")
    finally:
        os.chdir(before)
    assert len(os.fsencode(deep)) > os.pathconf(tmp_path, "PC_PATH_MAX")
    outside.write_text("outside")
    (work / "link").symlink_to(outside)
    (work / "set").write_text("x")
    (work / "set").chmod(0o6755)
    os.setxattr(work / "set", "user.kept", b"yes")
    os.setxattr(work / "set", "trusted.dropped", b"no")
    (work / "odd").mkdir(mode=0o2750)
    (work / "odd").chmod(0o2750)
    os.mkfifo(work / "odd" / "pipe")
    for path in (work / "set", work / "odd"):
        os.utime(path, ns=(5, 123_456_789))
    work.chmod(0o777)
    adopt.adopt(str(tmp_path), 1_234_567, time.monotonic() + 60)
    os.chdir(before)
    for path in (work, work / "set", work / "link", work / "odd", tmp_path / "harness"):
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (1_234_567, 1_234_567), path
    assert stat.S_IMODE((work / "set").stat().st_mode) == 0o6755
    assert stat.S_IMODE((work / "odd").stat().st_mode) == 0o2750
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    assert {(work / name).stat().st_mtime_ns for name in ("set", "odd")} == {123_456_789}
    assert os.listxattr(work / "set") == ["user.kept"]
    assert os.listdir(work / "odd") == os.listdir(tmp_path / "harness") == []
    assert outside.stat().st_uid == 0
    with pytest.raises(TimeoutError):
        adopt.adopt(str(tmp_path), 1_234_567, time.monotonic() - 1)
    os.chdir(before)


# ------------------------------------------------------------------------------------------------ on XFS and btrfs


@pytest.fixture(params=["xfs", "btrfs"])
def cow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDriver]:
    """A Driver whose data folder clones files, with the names of two pods."""
    with cow_folder(request.param, tmp_path) as folder:
        root = folder / "pods"
        if (reason := image.why_not(root)) is not None:
            pytest.skip(reason)
        driver = LocalDriver(root, INSTALLATION)
        assert driver.keeps.way() == "reflink"
        with own_pods(driver, NAME), own_pods(driver, OTHER):
            yield driver
        eventually(lambda: not loops(root))


def kept_as(driver: LocalDriver, key: str) -> None:
    """Keep the disk of the pod ``NAME``."""
    assert driver.keeps.keep(NAME, f"{key}.1")
    driver.keeps.settle(f"{key}.1", key)


def other(driver: LocalDriver, plane: ControlPlane, seed: str, **more: object) -> Client:
    driver.apply(spec(plane.url, name=OTHER, uid="uid-2", seed=seed, **more))
    return joined(driver, plane, OTHER)


def test_a_new_volume_starts_from_a_kept_disk_and_shares_nothing_else(cow: LocalDriver, plane: ControlPlane) -> None:
    """Unsynced bytes are in it; identity, harness and outside user are the new volume's own; both go their own ways."""
    cow.apply(spec(plane.url))
    source = joined(cow, plane)
    source.sh("mkdir d; head -c 30000000 /dev/urandom > d/big; echo secret > /harness/state; echo old > file; rm -f x")
    source.sh("mkfifo pipe; chmod 4711 file; ln file d/again; ln -s file link")
    told = source.sh("find . -type f -exec sha256sum {} + | sort")
    kept_as(cow, "op_1")
    source.sh("echo new > file")
    copy = other(cow, plane, "op_1")
    assert copy.sh("find . -type f -exec sha256sum {} + | sort") == told
    assert copy.sh("stat -c '%u:%g %a %h' file; readlink link; ls -A /harness | wc -l; ls pipe 2>&1 | wc -w").split(
        "\n"
    )[:3] == ["1000:1000 4711 2", "file", "0"]
    assert copy.bash("test -e pipe").output["exitCode"] == 1
    places = [Place(cow._root, name) for name in (NAME, OTHER)]
    assert len({place.bearer.stat().st_uid for place in places}) == 2
    statuses = [cow.status(name) for name in (NAME, OTHER)]
    assert [status.filled for status in statuses] == [None, "op_1"]
    assert len({status.volume_id for status in statuses}) == 2
    copy.sh("echo mine > file; sync file")
    assert source.sh("cat file") == "new"
    cow.delete(NAME)
    cow.keeps.drop(["op_1"])
    cow.apply(spec(plane.url, rev=2, name=OTHER, uid="uid-2", seed="op_1"))
    assert joined(cow, plane, OTHER).sh("cat file; wc -c < d/big").split() == ["mine", "30000000"]
    assert cow.status(OTHER).filled == "op_1"


def test_a_kept_disk_grows_and_is_never_cut(
    cow: LocalDriver, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    cow.apply(spec(plane.url))
    joined(cow, plane).sh("echo kept > file")
    kept_as(cow, "op_1")
    larger = other(cow, plane, "op_1", storage_gib=2)
    assert larger.sh("cat file") == "kept"
    assert int(larger.sh("df -B1 --output=size . | tail -1")) > 1.8 * (1 << 30)
    cow.delete(OTHER)
    monkeypatch.setattr(image, "capacity", lambda path: 3 << 30 if ".kept" in str(path) else 1 << 30)
    assert other(cow, plane, "op_1").sh("ls -A") == ""
    assert cow.status(OTHER).filled is None


@pytest.mark.parametrize("how", ["gone", "damaged", "refused", "half adopted"])
def test_a_start_without_its_kept_disk_is_an_empty_one(
    cow: LocalDriver, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The archive fills it: nothing half made is ever called filled."""
    cow.apply(spec(plane.url))
    joined(cow, plane).sh("echo kept > file")
    kept_as(cow, "op_1")
    path = cow.keeps.path("op_1")
    assert path is not None
    if how == "gone":
        path.unlink()
    elif how == "damaged":
        with path.open("r+b") as file:
            file.write(secrets.token_bytes(1 << 20))
    else:
        _break(monkeypatch, how)
    assert other(cow, plane, "op_1").sh("ls -A") == ""
    assert cow.status(OTHER).filled is None
    assert [entry.name for entry in Place(cow._root, OTHER).volume.glob(".making-*")] == []


def _break(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    def half(module: str, plan: dict[str, object], *arguments: str) -> object:
        return real(module, {**plan, "uid": "no number"} if module.endswith(".adopt") else plan, *arguments)

    real: Callable[..., object] = image.host.run_code
    if how == "refused":
        monkeypatch.setattr(reflink, "clone", refuse)
    else:
        monkeypatch.setattr(image.host, "run_code", half)


def test_a_maker_that_died_before_its_note_left_a_disk_that_counts_as_not_filled(
    cow: LocalDriver, plane: ControlPlane
) -> None:
    """The image was renamed into place, the volume had no id yet."""
    cow.apply(spec(plane.url))
    joined(cow, plane).sh("echo kept > file")
    kept_as(cow, "op_1")
    other(cow, plane, "op_1")
    cow.apply(spec(plane.url, rev=2, name=OTHER, uid="uid-2", mode="Suspended"))
    eventually(lambda: cow.status(OTHER).suspended)
    place = Place(cow._root, OTHER)
    (place.volume / "id").unlink()
    (place.volume / "owner.json").unlink()
    assert other(cow, plane, "op_1", rev=3).sh("cat file") == "kept"
    assert cow.status(OTHER).filled is None
