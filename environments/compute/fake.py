"""A Driver whose machines are entries of a table, moved by the script its user writes. Shipped for tests and try-outs.

Without a script an applied object is Running at once, joins nothing by itself, and is gone when it is deleted. A script
can make calls fail or stay silent, change what ``status`` says, and take a volume away. Every call is counted by name.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from environments.compute.contract import Keeps, Listing, NoAnswer, Readiness, SandboxSpec, SandboxStatus


@dataclass(slots=True)
class Machine:
    """One scripted object: its spec, its pod and its volume."""

    spec: SandboxSpec
    pod_uid: str | None = None
    volume_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    ready: bool = True
    reason: str | None = None
    message: str | None = None
    digest: str | None = None
    token: str | None = None


class FakeKeeps:
    """Kept disks that are names only: drafts, keys, and which volume was made from which key."""

    def __init__(self) -> None:
        self.drafts: set[str] = set()
        self.keys: set[str] = set()
        self.filled: dict[str, str] = {}

    def way(self) -> Literal["reflink", "portable"]:
        """Always there."""
        return "reflink"

    def keep(self, name: str, draft: str) -> bool:
        """Note the draft."""
        self.drafts.add(draft)
        return True

    def settle(self, draft: str, key: str | None) -> None:
        """The draft becomes its key."""
        if draft in self.drafts and key is not None:
            self.keys.add(key)
        self.drafts.discard(draft)

    def tidy(self) -> frozenset[str]:
        """All keys."""
        return frozenset(self.keys)

    def drop(self, keys: Iterable[str]) -> None:
        """Forget them."""
        self.keys.difference_update(keys)


class FakeDriver:
    """The contract of a Driver over a dictionary; safe to use from several threads.

    It keeps no disks until ``keeps`` is set to a :class:`FakeKeeps`.
    """

    keeps: Keeps | None = None

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.volumes: dict[str, str] = {}
        self.calls: Counter[str] = Counter()
        self.silent = False
        self.starts_ready = True
        self.available = Readiness(ready=True)
        self.before: Callable[[str, str], None] = lambda call, name: None
        self._lock = threading.RLock()

    def readiness(self) -> Readiness:
        """What the script says; ready by default."""
        return self.available

    def apply(self, spec: SandboxSpec) -> None:
        """Make or change the entry; a higher rev in mode Running draws a new pod."""
        with self._lock:
            self._called("apply", spec.name)
            known = self.machines.get(spec.name)
            if known is not None and known.spec.op_id == spec.op_id and (known.pod_uid or spec.mode == "Suspended"):
                return
            if spec.name not in self.volumes:
                self._fill(spec)
            volume = self.volumes.setdefault(spec.name, uuid.uuid4().hex)
            machine = known or Machine(spec, volume_id=volume)
            machine.spec, machine.volume_id = spec, volume
            machine.token = spec.join_token or machine.token
            machine.pod_uid = str(uuid.uuid4()) if spec.mode == "Running" else None
            machine.ready = self.starts_ready
            self.machines[spec.name] = machine

    def delete(self, name: str, *, keep_volume: bool = False) -> None:
        """Drop the entry, and its volume unless it is kept."""
        with self._lock:
            self._called("delete", name)
            self.machines.pop(name, None)
            if not keep_volume:
                self.volumes.pop(name, None)

    def status(self, name: str) -> SandboxStatus:
        """What the table says of ``name``."""
        with self._lock:
            self._called("status", name)
            volume_id = self.volumes.get(name)
            empty = SandboxStatus(
                name=name,
                exists=False,
                volume="missing" if volume_id is None else "present",
                volume_id=volume_id,
                filled=self.keeps.filled.get(name) if isinstance(self.keeps, FakeKeeps) else None,
            )
            machine = self.machines.get(name)
            if machine is None:
                return empty
            running = machine.pod_uid is not None
            return replace(
                empty,
                exists=True,
                uid=machine.spec.uid,
                mode=machine.spec.mode,
                ready=running and machine.ready,
                suspended=not running and machine.spec.mode == "Suspended",
                pod_uid=machine.pod_uid,
                pod_phase="Running" if running else None,
                address=f"unix:/fake/{name}" if running else None,
                op_id=machine.spec.op_id,
                image_digest=machine.digest,
                reason=machine.reason,
                message=machine.message,
            )

    def list(self) -> Listing:
        """Every entry and volume, of age 0."""
        with self._lock:
            self._called("list", "")
            return Listing(dict.fromkeys(self.machines, 0.0), dict.fromkeys(self.volumes, 0.0))

    def kill_pod(self, name: str) -> None:
        """The pod ends by itself; the object and its volume stay."""
        with self._lock:
            self.machines[name].pod_uid = None

    def lose_volume(self, name: str) -> None:
        """The volume vanishes."""
        with self._lock:
            self.volumes.pop(name, None)

    def _fill(self, spec: SandboxSpec) -> None:
        if isinstance(self.keeps, FakeKeeps) and spec.seed in self.keeps.keys:
            self.keeps.filled[spec.name] = spec.seed

    def _called(self, call: str, name: str) -> None:
        self.calls[call] += 1
        self.before(call, name)
        if self.silent:
            raise NoAnswer(f"the fake Driver is silent ({call} {name})")
