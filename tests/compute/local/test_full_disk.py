"""A disk that a sandbox filled: stop, wake, read and delete still work."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.compute.local import image, reserve
from environments.compute.local.driver import LocalDriver
from tests.compute.local.helpers import INSTALLATION, NAME, ControlPlane, eventually, joined, loops, own_pods, spec

_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2
_REMOUNT = 32


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system of its own")
    place = tmp_path / "disk"
    place.mkdir()
    mount(place, "12m")
    yield place
    eventually(lambda: not loops(place))
    assert _LIBC.umount2(bytes(place), _DETACH) == 0


def mount(place: Path, size: str, flags: int = 0) -> None:
    assert _LIBC.mount(b"tmpfs", bytes(place), b"tmpfs", flags, f"size={size}".encode()) == 0


def test_a_full_disk_keeps_no_pod_from_stopping_waking_and_going(small_disk: Path, plane: ControlPlane) -> None:
    """E-255, pain 21: the Driver keeps a little room for itself; writes say tool.no_space."""
    driver = LocalDriver(small_disk / "pods", INSTALLATION)
    with own_pods(driver, NAME):
        driver.apply(spec(plane.url, rev=1))
        pod = joined(driver, plane, NAME)
        pod.bash("dd if=/dev/zero of=big bs=1M count=64 2>/dev/null")
        assert pod.call("write", {"path": "more", "mode": "0644"}, body=b"x" * 100_000).code == "tool.no_space"
        assert pod.call("read", {"path": "big", "offset": 0, "limit": 4}).data == bytes(4)
        driver.apply(spec(plane.url, rev=2, mode="Suspended"))
        assert driver.status(NAME).pod_uid is None
        driver.apply(spec(plane.url, rev=3))
        pod = joined(driver, plane, NAME)
        pod.bash("rm big; echo room > more")
        assert pod.bash("cat more").out == b"room\n"
        driver.delete(NAME)
        assert driver.status(NAME).gone


def test_an_image_on_a_full_disk_is_woken_read_relieved_and_deleted(small_disk: Path, plane: ControlPlane) -> None:
    """Pain 21: the host's disk filled up after the volume was made; what is removed inside is room for the host."""
    mount(small_disk, "1100m", _REMOUNT)
    driver = LocalDriver(small_disk / "pods", INSTALLATION)
    if (reason := image.why_not(small_disk / "pods")) is not None:
        pytest.skip(reason)
    with own_pods(driver, NAME):
        driver.apply(spec(plane.url, rev=1))
        joined(driver, plane, NAME).sh("echo kept > file; head -c 4000000 /dev/urandom > big; sync file big")
        driver.apply(spec(plane.url, rev=2, mode="Suspended"))
        eventually(lambda: driver.status(NAME).suspended and not loops(small_disk))
        used = shutil.disk_usage(small_disk).used
        mount(small_disk, f"{used // 4096 * 4}k", _REMOUNT)
        driver.apply(spec(plane.url, rev=3))
        pod = joined(driver, plane, NAME)
        assert "storage" not in driver.status(NAME).unenforced
        assert pod.call("read", {"path": "file"}).data == b"kept\n"
        assert pod.call("write", {"path": "more", "mode": "0644"}, body=b"x" * 4_000_000).code == "tool.no_space"
        assert pod.call("remove", {"path": "big"}).output
        pod.sh("sync .")
        eventually(lambda: shutil.disk_usage(small_disk).free > 3_000_000)
        assert pod.call("write", {"path": "more", "mode": "0644"}, body=b"x" * 1_000_000).output
        driver.apply(spec(plane.url, rev=4))
        assert joined(driver, plane, NAME).sh("cat file; stat -c %s more").split() == ["kept", "1000000"]
        driver.delete(NAME)
        assert driver.status(NAME).gone


def test_the_reserve_is_given_up_for_one_change_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken while there is plenty, given up when there is not."""
    free = iter([1 << 30, 1 << 30, 100, 100, 100, 1 << 30])
    monkeypatch.setattr(reserve, "free_bytes", lambda root: next(free))
    kept = tmp_path / ".reserve"
    with reserve.room(tmp_path):
        assert not kept.exists()
    assert kept.stat().st_size == reserve.SIZE
    with reserve.room(tmp_path):
        assert kept.stat().st_size == 0
    assert kept.stat().st_size == 0
    with reserve.room(tmp_path):
        assert kept.stat().st_size == 0
    assert kept.stat().st_size == reserve.SIZE
