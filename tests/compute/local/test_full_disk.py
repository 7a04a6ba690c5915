"""A disk that a sandbox filled: stop, wake, read and delete still work."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.compute.local import reserve
from environments.compute.local.driver import LocalDriver
from tests.compute.local.helpers import INSTALLATION, NAME, ControlPlane, joined, own_pods, spec

_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system of its own")
    place = tmp_path / "disk"
    place.mkdir()
    assert _LIBC.mount(b"tmpfs", bytes(place), b"tmpfs", 0, b"size=12m") == 0
    yield place
    assert _LIBC.umount2(bytes(place), _DETACH) == 0


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


def test_the_reserve_is_given_up_for_one_change_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken while there is plenty, given up when there is not."""
    free = iter([1 << 30, 1 << 30, 100, 100, 100, 1 << 30])
    monkeypatch.setattr(reserve, "_free", lambda root: next(free))
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
