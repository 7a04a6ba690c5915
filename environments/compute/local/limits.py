"""Caps on a pod: cgroups of both versions where they can be written, process limits beside and instead of them.

A reader may rely on:
  * a pod's groups are made as children of this process's own group (version 2, whose inner groups hold no processes:
    beside it when need be), never at the top of somebody else's tree; each start has groups of its own name;
  * ``Groups.held`` names only caps that the kernel confirmed; what is not held is said, never pretended;
  * caps are: ``cpus`` (whole cores), ``memory`` (bytes, swap included), ``pids`` (processes and threads).
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 100_000
CAP_OF_CONTROLLER = {"cpu": "cpus", "memory": "memory", "pids": "pids"}


@dataclass(frozen=True, slots=True)
class Caps:
    """``cpus`` cores, ``memory`` bytes, ``pids`` processes and threads."""

    cpus: int
    memory: int
    pids: int


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup tree: its version, controllers it may carry, our own group in it, and where it is mounted."""

    version: int
    controllers: frozenset[str]
    own: Path
    mount: Path


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one pod, and the caps they hold."""

    folders: tuple[str, ...]
    held: frozenset[str]


def hierarchies(cgroup: str, mountinfo: str) -> list[Hierarchy]:
    """Read ``/proc/self/cgroup`` and ``/proc/self/mountinfo``: the trees in which we have a group."""
    ours = dict(_own_groups(cgroup))
    found = []
    for root, mount, kind, options in _mounts(mountinfo):
        names = frozenset(options.split(",")) & CAP_OF_CONTROLLER.keys() if kind == "cgroup" else frozenset({""})
        for key in sorted(names & ours.keys()):
            inside = ours[key].removeprefix(root.rstrip("/")).lstrip("/")
            version = 1 if kind == "cgroup" else 2
            found.append(Hierarchy(version, names - {""}, Path(mount) / inside, Path(mount)))
            break
    return found


def _own_groups(cgroup: str) -> Iterable[tuple[str, str]]:
    """``(controller, path)`` for each line; the controller of version 2 is the empty text."""
    for line in cgroup.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            yield name, path


def _mounts(mountinfo: str) -> Iterable[tuple[str, str, str, str]]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if right[0] in ("cgroup", "cgroup2"):
            yield left[3], left[4], right[0], right[2]


def own_hierarchies() -> list[Hierarchy]:
    """The trees this process has a group in."""
    cgroup = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    return hierarchies(cgroup, Path("/proc/self/mountinfo").read_text(encoding="utf-8"))


def make_groups(name: str, caps: Caps, trees: Iterable[Hierarchy]) -> Groups:
    """Make the groups ``name`` and set the caps; a tree we may not write to is left out."""
    folders: list[str] = []
    held: set[str] = set()
    for tree in trees:
        for parent in _parents(tree):
            caps_here = _make(parent / name, tree, caps)
            if caps_here:
                folders.append(str(parent / name))
                held |= caps_here
                break
    return Groups(tuple(folders), frozenset(held))


def possible_folders(name: str, trees: Iterable[Hierarchy]) -> list[str]:
    """Where ``make_groups`` may make the groups ``name``, to be noted before it does."""
    return [str(parent / name) for tree in trees for parent in _parents(tree)]


def _parents(tree: Hierarchy) -> list[Path]:
    """Where a group may be made. In version 2 a group with processes has no children with caps, but its parent may."""
    if tree.version == 1 or tree.own == tree.mount:
        return [tree.own]
    return [tree.own, tree.own.parent]


def _make(folder: Path, tree: Hierarchy, caps: Caps) -> frozenset[str]:
    """Make one group; the caps it holds. A group that would hold none is not left behind."""
    if not os.access(folder.parent / "cgroup.procs", os.W_OK):
        return frozenset()  # we could make the group perhaps, and not move anybody into it
    if tree.version == 2:
        _enable(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return frozenset()
    wanted = _settings(tree.version, caps)
    held = frozenset(cap for cap, files in wanted.items() if _set(folder, files))
    if not held:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return held


def _enable(parent: Path) -> None:
    for controller in CAP_OF_CONTROLLER:
        with contextlib.suppress(OSError):
            _write(parent / "cgroup.subtree_control", f"+{controller}")


def _settings(version: int, caps: Caps) -> Mapping[str, Mapping[str, str]]:
    """The files of each cap. A name that ends in ``?`` is set where the kernel has it."""
    memory, pids = str(caps.memory), str(caps.pids)
    if version == 1:
        quota = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(caps.cpus * PERIOD_US)}
        bytes_files = {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes?": memory}
        return {"cpus": quota, "memory": bytes_files, "pids": {"pids.max": pids}}
    return {
        "cpus": {"cpu.max": f"{caps.cpus * PERIOD_US} {PERIOD_US}"},
        "memory": {"memory.max": memory, "memory.swap.max?": "0"},
        "pids": {"pids.max": pids},
    }


def _set(folder: Path, files: Mapping[str, str]) -> bool:
    for name, value in files.items():
        path = folder / name.rstrip("?")
        if name.endswith("?") and not path.exists():
            continue
        try:
            _write(path, value)
        except OSError:
            return False
    return True


def _write(path: Path, value: str) -> None:
    """Write to a file of the kernel; one that does not exist is not made."""
    with path.open("r+", encoding="ascii") as file:
        file.write(value)


def process_limits(caps: Caps, held: frozenset[str], storage: int, *, own_uid: bool) -> dict[int, int]:
    """The rlimits a pod starts with. Those that stand in for a cap hold per process (memory) or per uid (pids).

    Memory is limited as data, not as address space: interpreters reserve far more addresses than they ever use.
    """
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: storage}
    if "memory" not in held:
        limits[resource.RLIMIT_DATA] = caps.memory
    if "pids" not in held and own_uid:
        limits[resource.RLIMIT_NPROC] = caps.pids
    return limits


def unenforced(held: frozenset[str], *, own_uid: bool) -> tuple[str, ...]:
    """What is not held, in the order of the contract. ``held`` names ``storage`` when the volume has a size."""
    loose = {"cpus", "memory", "pids", "storage"} - held
    if own_uid:
        loose.discard("pids")
    return tuple(name for name in ("cpus", "memory", "pids", "storage") if name in loose)
