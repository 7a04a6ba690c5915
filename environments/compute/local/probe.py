"""Whether this host can make pods, found out by making a sandbox and running ``true`` in it.

A reader may rely on:
  * what is tried is the very sandbox of a pod: same options, same outside user, same way of starting;
  * a "yes" is kept for the life of the process, a "no" for ``AGAIN`` seconds; the reason names what to do;
  * where further user namespaces cannot be forbidden by their count, they still are by the seccomp filter.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from environments.compute.contract import Readiness
from environments.compute.local import bwrap, host, owners
from environments.compute.local.errors import CannotStart
from environments.compute.local.processes import marker
from environments.compute.local.seccomp import UnknownMachine

AGAIN = 5.0
MEMORY = 64 << 20
HINT = (
    "bubblewrap cannot make a sandbox here ({text}). User namespaces must be allowed: "
    "sysctl user.max_user_namespaces (not 0), kernel.unprivileged_userns_clone=1 and "
    "kernel.apparmor_restrict_unprivileged_userns=0 where they exist; in a container, seccomp and AppArmor unconfined."
)


class _Memory:
    """What was found out last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.host: bwrap.Host | None = None
        self.reason: str | None = None
        self.asked_at = float("-inf")


_memory = _Memory()


def probe(root: Path) -> Readiness:
    """Say whether pods can be made in the data folder ``root``; never raises."""
    try:
        usable_host(root)
    except CannotStart as error:
        return Readiness(ready=False, reason=str(error))
    return Readiness(ready=True)


def usable_host(root: Path) -> bwrap.Host:
    """This host, with the options that work on it; raises :class:`CannotStart`."""
    with _memory.lock:
        if _memory.host is None and time.monotonic() - _memory.asked_at >= AGAIN:
            _ask(root)
            _memory.asked_at = time.monotonic()
        if _memory.host is None:
            raise CannotStart(_memory.reason or "not known")
        return _memory.host


def _ask(root: Path) -> None:
    try:
        failure = _try(root, host.describe(disable_userns=True))
        if failure is None:
            _memory.host = host.describe(disable_userns=True)
            return
        if _try(root, host.describe(disable_userns=False)) is None:
            _memory.host = host.describe(disable_userns=False)
            return
        _memory.reason = HINT.format(text=failure)
    except (CannotStart, UnknownMachine, OSError, owners.NoUidLeft, subprocess.TimeoutExpired) as error:
        _memory.reason = f"The local driver cannot start a pod: {error}"


def _try(root: Path, candidate: bwrap.Host) -> str | None:
    """Run ``true`` in a sandbox with its folders in ``root``; what bubblewrap said when that failed."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".probe-", dir=root))
    try:
        uid = outside_user(root)
        for name in ("workspace", "harness"):
            (folder / name).mkdir(mode=0o700)
            if uid is not None:
                os.chown(folder / name, uid, uid)
        return run_true(candidate, folder, uid, None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_true(candidate: bwrap.Host, files: Path, uid: int | None, disk: dict[str, str] | None) -> str | None:
    """Run ``true`` in a sandbox with ``workspace`` and ``harness`` of ``files``; what was said when that failed.

    ``disk`` is what ``launch`` mounts first. Raises ``OSError`` and ``TimeoutExpired``.
    """
    mark = marker(secrets.token_hex(8))
    box = bwrap.Box("probe", str(files / "workspace"), str(files / "harness"), MEMORY, 64, mark)
    plan = {"uid": uid, "disk": disk, "groups": [], "limits": [], **host.as_plan(candidate, box, ["/usr/bin/true"])}
    result = host.run_code("environments.compute.local.launch", plan, mark)
    return None if result.returncode == 0 else result.stderr.strip() or f"exit code {result.returncode}"


def outside_user(root: Path) -> int | None:
    """A uid for trying things out; ``None`` for an ordinary user."""
    if os.geteuid() != 0:
        return None
    return owners.uid_range(root, Path("/proc/self/uid_map").read_text(encoding="ascii"))[0]
