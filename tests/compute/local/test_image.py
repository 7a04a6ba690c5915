"""Disk images by themselves: mounted once at a time, freed by the kernel, and tried out before a volume becomes one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from environments.compute.local import disk, host, image
from nylorun.cli.leftovers import leftovers
from tests.compute.local.helpers import eventually, loops

ATTACH = """
import os, sys
from environments.compute.engine import libc
from environments.compute.local import disk

if sys.argv[1] == "old kernel":
    disk.LOOP_CONFIGURE = 0x4C7F
libc.call("unshare", 0x20000)
libc.call("mount", b"none", b"/", None, 0x4000 | 0x40000, None)
disk.attach(sys.argv[2], sys.argv[3])
print(sorted(os.listdir(sys.argv[3])), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _where_images_can_be_mounted(tmp_path: Path) -> None:
    if (reason := image.why_not(tmp_path / "pods")) is not None:
        pytest.skip(reason)


# ------------------------------------------------------------------------------------------------ mounting


@pytest.fixture
def small(tmp_path: Path) -> tuple[str, str]:
    """A small image and a folder for it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    image.make(tmp_path / "disk.img", image.TRIAL_SIZE, 1_000_000)
    return str(tmp_path / "disk.img"), str(folder)


def attached(kernel: str, small: tuple[str, str]) -> subprocess.Popen[str]:
    """A process that mounts ``small`` for itself and says what it finds."""
    command = [sys.executable, "-c", ATTACH, kernel, *small]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=host.CODE_ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("kernel", ["new kernel", "old kernel"])
def test_it_is_mounted_once_and_freed_with_its_last_process(small: tuple[str, str], kernel: str) -> None:
    """Two mounts of one file system would destroy it: the second is refused for as long as the first lasts."""
    with attached(kernel, small) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "['harness', 'lost+found', 'workspace']\n"
        assert loops(Path(small[1]).parent) == [small[0]]
        assert disk.in_use(small[0])
        with attached(kernel, small) as second:
            assert "still in use by an earlier pod" in second.communicate()[1]
        first.kill()
    eventually(lambda: not disk.in_use(small[0]))
    assert loops(Path(small[1]).parent) == []


def test_a_mount_that_outlived_its_pod_would_be_seen(small: tuple[str, str]) -> None:
    """The demo's last look finds it by its loop device, since no other process sees the mount."""
    folder = Path(small[1]).parent
    with attached("new kernel", small) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (line,) = [line for line in leftovers(folder) if not line.startswith("process")]
        assert line.startswith("loop")
        assert line.endswith(f" holds {small[0]}")
        process.kill()
    eventually(lambda: leftovers(folder) == [])


def test_an_image_that_is_gone_is_not_in_use(tmp_path: Path) -> None:
    assert not disk.in_use(str(tmp_path / "none"))


def test_a_volume_has_room_for_as_many_small_files_as_its_size_lets_expect(tmp_path: Path) -> None:
    """A GiB holds 200,000 files of one block each, in a thousand folders: inodes and blocks for both."""
    image.make(tmp_path / "disk.img", 1 << 30, 1_000_000)
    with (tmp_path / "disk.img").open("rb") as file:
        file.seek(image.SUPERBLOCK)
        head = file.read(32)
    blocks, inodes, shift = (int.from_bytes(head[at : at + 4], "little") for at in (12, 16, 24))
    assert inodes >= 201_000
    assert blocks << (10 + shift) >= 4096 * (200_000 + 10_000)


# ------------------------------------------------------------------------------------------------ the probe


def test_a_no_has_a_reason_and_is_asked_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_memory", image._Memory())
    monkeypatch.setattr(image, "TOOLS", "/nowhere")
    assert "install e2fsprogs" in (image.why_not(tmp_path) or "")
    monkeypatch.undo()
    monkeypatch.setattr(image, "_memory", memory := image._Memory())
    memory.reason, memory.asked_at = "no", time.monotonic()
    assert image.why_not(tmp_path) == "no"
    memory.asked_at -= image.AGAIN
    assert image.why_not(tmp_path) is None
    assert list(tmp_path.glob(".probe-*")) == []


def test_a_mount_that_is_not_allowed_is_a_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried is the mount itself, here of an image without a file system."""
    monkeypatch.setattr(image, "_memory", image._Memory())
    monkeypatch.setattr(image, "_run", lambda *_: None)
    monkeypatch.setattr(image, "_allocate_journal", lambda _: None)
    assert "cannot be mounted" in (image.why_not(tmp_path) or "")


def test_loop_devices_need_a_dev_that_the_kernel_keeps() -> None:
    assert image._makes_nodes("udev /dev devtmpfs rw 0 0\n")
    assert not image._makes_nodes("tmpfs /dev tmpfs rw 0 0\nnone /x/dev devtmpfs rw 0 0\n")
