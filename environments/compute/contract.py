"""What a machine promises, whoever makes it: the contract of every Driver and of every Engine.

The rooms behind this file (``local``, ``virtual``, ``kubernetes``, ``fake``) know machines and no rows; the rooms
before it know rows and no machines. Everything that crosses is one of the values below.

A reader may rely on:
  * every Driver call may be repeated, at any time, from any process; a repeated call changes nothing more;
  * a Driver that cannot tell raises :class:`NoAnswer`; it never guesses that a thing is gone;
  * no call of this contract is made while a database transaction is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Mode = Literal["Running", "Suspended"]
VolumeState = Literal["present", "missing"]


class NoAnswer(Exception):
    """The Driver or the machine behind it did not answer: nothing is known, so nothing may be concluded."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a Driver can make pods now; ``reason`` is for people when it cannot."""

    ready: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What one Sandbox object shall be. ``op_id`` is ``<name>.r<rev>``: applying one op id twice changes nothing.

    ``join_token`` is set only when the object did not exist and a token was rotated for it; an apply without one keeps
    the token the object has. ``network`` is the allow list of the Recipe (``None``: no way out). ``memory_mib`` and
    ``storage_gib`` are the Recipe's, in MiB and GiB. ``grace_seconds`` lies between asking a pod to end and killing it.
    ``egress_ca`` are the certificates, as PEM, that a pod with a way out trusts beside its own: those of the gate.
    ``seed`` is the key of a kept disk (:class:`Keeps`) from which a volume that is yet to be made may start.
    """

    name: str
    op_id: str
    installation: str
    uid: str
    environment_id: str
    mode: Mode
    cpus: int
    memory_mib: int
    storage_gib: int
    grace_seconds: float
    engine_url: str
    egress_url: str
    egress_ca: str = ""
    image: str | None = None
    network: tuple[str, ...] | None = None
    harness: str = "nylorun"
    env: Mapping[str, str] = field(default_factory=dict)
    join_token: str | None = None
    seed: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """What a Driver sees under one name now.

    ``ready``: the status is of the current spec, its mode is Running and a live pod's Engine answers. ``address`` is
    where the control plane reaches the Engine of ``pod_uid`` (``unix:<path>`` or ``host:port``). ``volume_id`` is the
    id file on the volume. ``filled`` is the key of the kept disk from which it was made: a volume says so from its
    first pod on, or never. ``unenforced`` lists the limits, of ``cpus, memory, pids, storage``, the host cannot hold.
    """

    name: str
    exists: bool
    volume: VolumeState
    deleting: bool = False
    uid: str | None = None
    mode: Mode | None = None
    ready: bool = False
    suspended: bool = False
    pod_uid: str | None = None
    pod_phase: str | None = None
    address: str | None = None
    volume_id: str | None = None
    filled: str | None = None
    op_id: str | None = None
    image_digest: str | None = None
    unenforced: tuple[str, ...] = ()
    reason: str | None = None
    message: str | None = None

    @property
    def gone(self) -> bool:
        """No Sandbox object, no pod, no volume: nothing is left of the name."""
        return not self.exists and self.pod_uid is None and self.volume == "missing"


@dataclass(frozen=True, slots=True)
class Listing:
    """Names this installation's Driver holds: objects and volumes, with the age in seconds of each."""

    objects: Mapping[str, float]
    volumes: Mapping[str, float]


class Keeps(Protocol):
    """What a Driver can do that keeps whole disks beside the archive, from which new volumes start without a copy.

    They are copies only: any of them may be gone at any time, and a volume that could not start from one is empty.
    Keys and drafts are letters, digits, ``_`` and ``-``, and then perhaps a point and a number.
    """

    def way(self) -> Literal["reflink", "portable"]:
        """How a start from a kept disk would be made here; ``portable``: there is none. Never raises."""

    def keep(self, name: str, draft: str) -> bool:
        """Keep the workspace of ``name`` as it is now, as ``draft``; whether it was possible. Never raises.

        The caller sees to it that the processes of its running pod stand still. An earlier ``draft`` goes first.
        """

    def settle(self, draft: str, key: str | None) -> None:
        """Give a draft its key, from which volumes may start; or drop it. A missing one succeeds.

        Raises ``OSError``.
        """

    def tidy(self) -> frozenset[str]:
        """Remove drafts of the dead, and every kept disk while room is short; the keys that are left.

        Raises ``OSError``.
        """

    def drop(self, keys: Iterable[str]) -> None:
        """Remove what is kept under these keys. Raises ``OSError``."""


class Driver(Protocol):
    """Makes, reads and deletes Sandbox objects by name."""

    @property
    def keeps(self) -> Keeps | None:
        """Its kept disks; ``None`` for a Driver that has no such thing."""

    def readiness(self) -> Readiness:
        """Say whether pods can be made now; never raises."""

    def apply(self, spec: SandboxSpec) -> None:
        """Make or change the object; in mode Running a higher rev means a new pod, the same rev starts a pod that is
        gone.

        Returns once the object bears the op id; the pod may still be starting. Raises :class:`NoAnswer`.
        """

    def delete(self, name: str, *, keep_volume: bool = False) -> None:
        """Remove pod and object, and the volume unless it is kept; a missing one succeeds. Raises :class:`NoAnswer`."""

    def status(self, name: str) -> SandboxStatus:
        """Read what is there under ``name``. Raises :class:`NoAnswer`."""

    def list(self) -> Listing:
        """Name all objects and volumes of this installation. Raises :class:`NoAnswer`."""


# ------------------------------------------------------------------------------------------------ the Engine's side

ToolCode = Literal[
    "tool.not_found", "tool.exists", "tool.is_directory", "tool.not_directory", "tool.not_empty", "tool.path_escape",
    "tool.permission", "tool.no_space", "tool.too_large", "tool.cancelled", "tool.interrupted", "tool.rejected",
    "tool.failed",
]  # fmt: skip


class NotAccepted(Exception):
    """The Engine did not accept the call (no connection, another epoch): nothing has run, it may be sent again."""


class Interrupted(Exception):
    """The connection ended after the call was accepted: it may have run, and is never run again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended: ``output`` when completed, ``code`` and ``message`` when the tool failed."""

    kind: Literal["completed", "failed"]
    output: Mapping[str, object] | None = None
    code: str | None = None
    message: str | None = None
