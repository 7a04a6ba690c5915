"""What an installation left on the machine: processes, mounts, loop devices and cgroups of its folder or its pods."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

POD_PREFIX = "sbx-"


def leftovers(folder: Path) -> list[str]:
    """One line for each thing that still belongs to the data folder; empty when nothing is left."""
    names = [str(folder), *(place.name for place in (folder / "pods").glob(f"{POD_PREFIX}*"))]
    return [*_processes(names), *_mounts(names), *_loops(names), *_cgroups(names)]


def _processes(names: list[str]) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if any(name in command for name in names):
            found.append(f"process {process.name}: {command[:120]}")
    return found


def _mounts(names: list[str]) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [f"mount {line[:120]}" for line in lines if any(name in line for name in names)]


def _loops(names: list[str]) -> list[str]:
    """Loop devices tell of mounts that only the mount namespace of a pod has."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # it was freed just now
            file = path.read_text(errors="replace").strip()
            found += [f"{path.parts[3]} holds {file}" for name in names if name in file][:1]
    return found


def _cgroups(names: list[str]) -> list[str]:
    found = []
    for root, folders, _ in os.walk("/sys/fs/cgroup"):
        found += [f"cgroup {root}/{folder}" for folder in folders if any(name in folder for name in names)]
    return found
