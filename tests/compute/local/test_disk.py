"""Volumes that are disk images: kept over every end of a pod, never mounted twice, never made anew."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from environments.compute.contract import SandboxStatus
from environments.compute.local import backing, image
from environments.compute.local.driver import LocalDriver
from environments.compute.local.errors import CannotStart
from environments.compute.local.places import Place
from tests.compute.local.helpers import (
    NAME,
    ControlPlane,
    eventually,
    joined,
    loops,
    our_processes,
    ready,
    spec,
)

GIB = 1 << 30
NEEDS_RECOVERY = 0x4


@pytest.fixture(autouse=True)
def _where_images_can_be_mounted(tmp_path: Path) -> None:
    if (reason := image.why_not(tmp_path / "pods")) is not None:
        pytest.skip(reason)


@pytest.fixture
def place(driver: LocalDriver) -> Iterator[Place]:
    """The place of the one pod; at the end no loop device holds anything of it."""
    place = Place(driver._root, NAME)
    yield place
    driver.delete(NAME)
    eventually(lambda: not loops(driver._root))


def suspended(driver: LocalDriver, plane: ControlPlane, rev: int = 2) -> SandboxStatus:
    driver.apply(spec(plane.url, rev=rev, mode="Suspended"))
    eventually(lambda: driver.status(NAME).suspended)
    return driver.status(NAME)


def crashed(driver: LocalDriver) -> SandboxStatus:
    """The status once the pod has ended by itself."""
    eventually(lambda: driver.status(NAME).pod_uid is None)
    return driver.status(NAME)


def lines_of_mounts(place: Place) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if NAME in line]


# ------------------------------------------------------------------------------------------------ while it lasts


def test_it_is_seen_by_its_pod_alone_and_gives_no_rights(
    driver: LocalDriver, plane: ControlPlane, place: Place
) -> None:
    """E-255: nosuid and nodev inside; outside one sparse file, and no mount in the host's table."""
    driver.apply(spec(plane.url))
    pod = joined(driver, plane)
    assert driver.status(NAME).unenforced == ()
    mounts = {line.split()[1]: line.split() for line in pod.sh("cat /proc/self/mounts").splitlines()}
    for target in ("/workspace", "/harness"):
        assert mounts[target][2] == "ext4"
        assert {"rw", "nosuid", "nodev", "noatime"} <= set(mounts[target][3].split(","))
    assert 0.9 * GIB < int(pod.sh("df -B1 --output=avail . | tail -1")) < GIB
    assert pod.sh("ls -A /workspace /harness").split() == ["/harness:", "/workspace:"]
    assert pod.bash("ls /workspace/../lost+found").output["exitCode"] != 0
    assert loops(driver._root) == [str(place.image)]
    assert lines_of_mounts(place) == []
    assert list(place.disk.iterdir()) == []
    assert place.image.stat().st_size == GIB
    assert place.image.stat().st_blocks * 512 < GIB // 64
    assert place.image.stat().st_mode & 0o777 == 0o600


def test_what_is_removed_in_it_is_given_back_to_the_host(
    driver: LocalDriver, plane: ControlPlane, place: Place
) -> None:
    driver.apply(spec(plane.url))
    pod = joined(driver, plane)
    pod.sh("head -c 30000000 /dev/urandom > big; sync big")
    used = place.image.stat().st_blocks
    pod.sh("rm big; sync .")
    eventually(lambda: place.image.stat().st_blocks < used - 20_000_000 // 512)


# ------------------------------------------------------------------------------------------------ what it outlives


def test_it_is_kept_over_a_suspend_and_then_nothing_of_it_is_mounted(
    driver: LocalDriver, plane: ControlPlane, place: Place
) -> None:
    """Pain 1: and its id, outside user and file stay the same."""
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo kept > file; echo too > /harness/file")
    before = (driver.status(NAME).volume_id, place.image.stat().st_ino, place.bearer.stat().st_uid)
    suspended(driver, plane)
    eventually(lambda: not loops(driver._root))
    driver.apply(spec(plane.url, rev=3, join_token=None))
    assert joined(driver, plane).sh("cat file /harness/file").split() == ["kept", "too"]
    assert (driver.status(NAME).volume_id, place.image.stat().st_ino, place.bearer.stat().st_uid) == before


def test_it_outlives_sigkill_of_everything_at_once(driver: LocalDriver, plane: ControlPlane, place: Place) -> None:
    """Pain 31: the kernel unmounts it and frees its loop device; the next pod finds what was written."""
    for rev in (1, 2, 3):
        driver.apply(spec(plane.url, rev=rev))
        joined(driver, plane).sh("echo kept >> file")
        for pid in our_processes():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not loops(driver._root))
    driver.apply(spec(plane.url, rev=4))
    assert joined(driver, plane).sh("cat file").split() == ["kept"] * 3


def test_a_journal_left_by_a_crash_is_replayed(driver: LocalDriver, plane: ControlPlane, place: Place) -> None:
    """What a machine that lost its power leaves: here a copy taken while the file system is in use."""
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("mkdir deep; echo kept > deep/file; sync deep/file deep")
    copy = place.root / "copy"
    shutil.copy(place.image, copy)
    suspended(driver, plane)
    driver.delete(NAME, keep_volume=True)
    eventually(lambda: not loops(driver._root))
    with copy.open("rb") as file:
        file.seek(image.SUPERBLOCK + 0x60)
        assert int.from_bytes(file.read(4), "little") & NEEDS_RECOVERY
    copy.replace(place.image)
    driver.apply(spec(plane.url, rev=3))
    assert joined(driver, plane).sh("cat deep/file") == "kept"


def test_a_full_one_is_woken_read_and_relieved(driver: LocalDriver, plane: ControlPlane, place: Place) -> None:
    """Pain 21: wake, read and delete work on a full disk; a write is tool.no_space."""
    driver.apply(spec(plane.url))
    joined(driver, plane).bash("echo kept > file; fallocate -l 950M most; head -c 200000000 /dev/zero > rest")
    suspended(driver, plane)
    driver.apply(spec(plane.url, rev=3))
    pod = joined(driver, plane)
    assert pod.call("write", {"path": "new"}, b"x" * 100_000).code == "tool.no_space"
    assert pod.call("read", {"path": "file"}).data == b"kept\n"
    pod.call("remove", {"path": "rest"})
    assert pod.call("write", {"path": "new"}, b"x" * 100_000).output


# ------------------------------------------------------------------------------------------------ damage


def test_a_half_made_image_is_made_again(driver: LocalDriver, plane: ControlPlane, place: Place) -> None:
    """A maker killed before the rename leaves a claimed volume without an id, and its work beside."""
    place.make_folders()
    place.claim_volume(1_234_567, as_image=True)
    (place.volume / ".making-dead").mkdir()
    (place.volume / ".making-dead" / "disk.img").write_bytes(b"half")
    assert driver.status(NAME).volume_id is None
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo works > file")
    assert place.bearer.stat().st_uid == 1_234_567
    assert {path.name for path in place.volume.iterdir()} == {"disk", "disk.img", "id", "owner.json"}


def test_a_damaged_image_is_a_failed_start_and_no_empty_disk(
    driver: LocalDriver, plane: ControlPlane, place: Place
) -> None:
    """Pain 13: the start says what is wrong, changes nothing, and works again once the image is repaired."""
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo kept > file")
    before = suspended(driver, plane)
    with place.image.open("r+b") as file:
        head = file.read(1 << 16)
        file.seek(0)
        file.write(bytes(len(head)))
    driver.apply(spec(plane.url, rev=3))
    status = crashed(driver)
    assert (status.reason, status.volume_id) == ("crash", before.volume_id)
    assert "disk image cannot be mounted (Invalid argument)" in (status.message or "")
    assert list(place.disk.iterdir()) == []
    with place.image.open("r+b") as file:
        assert file.read(1 << 16) == bytes(len(head))
        file.seek(0)
        file.write(head)
    driver.apply(spec(plane.url, rev=4))
    assert joined(driver, plane).sh("cat file") == "kept"


@pytest.mark.parametrize("part", ["disk.img", "disk", "both"])
def test_an_image_that_lost_a_part_is_not_completed(
    driver: LocalDriver, plane: ControlPlane, place: Place, part: str
) -> None:
    """E-108: the volume counts as lost, and a start on it is refused before anything is made."""
    driver.apply(spec(plane.url))
    ready(driver)
    suspended(driver, plane)
    for name in ("disk.img", "disk") if part == "both" else (part,):
        (place.volume / name).rename(place.root / name)
    left = sorted(path.name for path in place.volume.iterdir())
    assert driver.status(NAME).volume_id is None
    with pytest.raises(CannotStart, match="not made anew"):
        driver.apply(spec(plane.url, rev=3))
    assert sorted(path.name for path in place.volume.iterdir()) == left


def test_a_volume_removed_under_a_pod_is_missing(driver: LocalDriver, plane: ControlPlane, place: Place) -> None:
    """E-108: as with a folder; the pod's end frees the loop device."""
    driver.apply(spec(plane.url))
    joined(driver, plane)
    shutil.rmtree(place.volume)
    assert driver.status(NAME).volume == "missing"
    driver.delete(NAME)
    eventually(lambda: not loops(driver._root))


# ------------------------------------------------------------------------------------------------ which kind, and size


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on this host seems to mount no images."""
    return lambda: monkeypatch.setattr(image, "why_not", lambda root: "not here")


def test_a_folder_stays_a_folder(
    driver: LocalDriver, plane: ControlPlane, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-255: its limit is not held, and the view says so, also once the host could do more."""
    with monkeypatch.context() as patch:
        patch.setattr(image, "why_not", lambda root: "not here")
        driver.apply(spec(plane.url))
        joined(driver, plane).sh("echo kept > file")
        assert driver.status(NAME).unenforced == ("storage",)
    suspended(driver, plane)
    driver.apply(spec(plane.url, rev=3))
    assert joined(driver, plane).sh("cat file") == "kept"
    assert driver.status(NAME).unenforced == ("storage",)
    assert not place.is_image()
    assert loops(driver._root) == []


def test_an_image_stays_an_image(
    driver: LocalDriver, plane: ControlPlane, place: Place, forbid: Callable[[], None]
) -> None:
    """Also when no new one could be made: full disks and missing tools keep nobody from his files."""
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo kept > file")
    suspended(driver, plane)
    forbid()
    driver.apply(spec(plane.url, rev=3))
    assert joined(driver, plane).sh("cat file") == "kept"
    assert driver.status(NAME).unenforced == ()


def test_an_image_is_refused_to_a_driver_that_is_not_root(
    driver: LocalDriver, plane: ControlPlane, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.apply(spec(plane.url))
    suspended(driver, plane)
    with monkeypatch.context() as patch:
        patch.setattr("environments.compute.local.backing.os.geteuid", lambda: 1000)
        with pytest.raises(CannotStart, match="only root mounts"):
            driver.apply(spec(plane.url, rev=3))


def test_a_disk_that_could_not_hold_it_once_gets_a_folder(
    driver: LocalDriver, plane: ControlPlane, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backing, "free_bytes", lambda root: GIB - 1)
    driver.apply(spec(plane.url))
    assert ready(driver).unenforced == ("storage",)


def test_it_grows_with_its_recipe_and_never_shrinks(driver: LocalDriver, plane: ControlPlane, place: Place) -> None:
    """What is larger than the Recipe's storage does not hold it, and the view says so."""

    def room(rev: int, storage_gib: int) -> tuple[int, tuple[str, ...]]:
        driver.apply(spec(plane.url, rev=rev, storage_gib=storage_gib))
        pod = joined(driver, plane)
        assert pod.sh("echo kept >> file; uniq file") == "kept"
        return round(int(pod.sh("df -B1 --output=size . | tail -1")) / GIB), driver.status(NAME).unenforced

    assert room(1, 1) == (1, ())
    assert room(2, 3) == (3, ())
    assert room(3, 2) == (3, ("storage",))
    assert room(4, 3) == (3, ())


def test_one_that_cannot_grow_keeps_its_size(
    driver: LocalDriver, plane: ControlPlane, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds less than the Recipe asks for, and no more; the pod starts all the same."""
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo kept > file")
    monkeypatch.setattr(image, "TOOLS", "/nowhere")
    driver.apply(spec(plane.url, rev=2, storage_gib=3))
    assert joined(driver, plane).sh("cat file") == "kept"
    assert (image.capacity(place.image), driver.status(NAME).unenforced) == (GIB, ())
    monkeypatch.undo()
    monkeypatch.setattr(backing, "free_bytes", lambda root: GIB)
    driver.apply(spec(plane.url, rev=3, storage_gib=3))
    ready(driver)
    assert image.capacity(place.image) == GIB
