"""Which Driver serves this installation. Asked by the workers, by Tool calls and by a join, never inside a
transaction.
"""

from __future__ import annotations

import threading
from pathlib import Path

from environments.compute.contract import Driver, Keeps, Listing, NoAnswer, Readiness, SandboxSpec, SandboxStatus
from nylorun.kernel.clock import monotonic

READINESS_CACHE = 5.0


class NoDriver:
    """The installation has no pods: readiness says so, everything else does not answer."""

    keeps: Keeps | None = None

    def readiness(self) -> Readiness:
        """Never ready."""
        return Readiness(ready=False, reason="this installation has no Driver for pods")

    def apply(self, spec: SandboxSpec) -> None:
        """Raise :class:`NoAnswer`."""
        raise NoAnswer

    def delete(self, name: str, *, keep_volume: bool = False) -> None:
        """Raise :class:`NoAnswer`."""
        raise NoAnswer

    def status(self, name: str) -> SandboxStatus:
        """Raise :class:`NoAnswer`."""
        raise NoAnswer

    def list(self) -> Listing:
        """Raise :class:`NoAnswer`."""
        raise NoAnswer


class Registry:
    """The configured Driver of this process, made once, and its readiness, asked at most every five seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drivers: dict[tuple[str, Path, str], Driver] = {}
        self._readiness: dict[str, tuple[float, Readiness]] = {}

    def driver(self, name: str, data_dir: Path, installation: str) -> Driver:
        """The Driver of this name; unknown ones do not answer."""
        key = (name, data_dir, installation)
        with self._lock:
            if key not in self._drivers:
                self._drivers[key] = _make(name, data_dir, installation)
            return self._drivers[key]

    def way(self, name: str, data_dir: Path) -> str:
        """How new volumes get the bytes of a version (see :class:`Keeps`), asked without any row."""
        if name != "local":
            return "portable"
        from environments.compute.local.kept import Shelf  # noqa: PLC0415

        return Shelf(_pods(data_dir)).way()

    def readiness(self, name: str, driver: Driver) -> Readiness:
        """The last answer, not older than ``READINESS_CACHE``."""
        now = monotonic()
        asked = self._readiness.get(name)
        if asked is None or now - asked[0] > READINESS_CACHE:
            asked = (now, driver.readiness())
            self._readiness[name] = asked
        return asked[1]

    def forget(self) -> None:
        """Make every Driver again at its next use: for tests."""
        with self._lock:
            self._drivers.clear()
            self._readiness.clear()


def _pods(data_dir: Path) -> Path:
    return data_dir.absolute() / "pods"


def _make(name: str, data_dir: Path, installation: str) -> Driver:
    """Only the configured Driver is loaded: each may bring libraries that the others do without."""
    if name == "local":
        from environments.compute.local.driver import LocalDriver  # noqa: PLC0415

        return LocalDriver(_pods(data_dir), installation)
    if name == "fake":
        from environments.compute.fake import FakeDriver  # noqa: PLC0415

        return FakeDriver()
    return NoDriver()


registry = Registry()
