"""A file system that clones files, in a file: mounted for a test and taken away after it, however it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from environments.compute.local.image import TOOLS

SIZE = 4 << 30
MAKE = {"xfs": ("mkfs.xfs", "-q"), "btrfs": ("mkfs.btrfs", "-q")}


@contextmanager
def cow_folder(kind: str, folder: Path, size: int = SIZE) -> Iterator[Path]:
    """A mounted file system of this kind beneath ``folder``; skips where this machine cannot have one."""
    tool, *options = MAKE[kind]
    program = shutil.which(tool, path=TOOLS)
    if os.geteuid() != 0 or program is None:
        pytest.skip(f"a {kind} for this test needs root and {tool}")
    file, at = folder / f"{kind}.img", folder / kind
    at.mkdir()
    with file.open("wb") as made:
        made.truncate(size)
    subprocess.run([program, *options, str(file)], check=True, capture_output=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(file), str(at)], check=False, capture_output=True, text=True)
    try:
        if mounted.returncode != 0:
            pytest.skip(f"{kind} cannot be mounted here: {mounted.stderr.strip()}")
        yield at
    finally:
        if mounted.returncode == 0 and subprocess.run(["umount", str(at)], check=False).returncode != 0:
            subprocess.run(["umount", "--lazy", str(at)], check=True)
        file.unlink()
