"""The Tenant's sandbox settings: the document an operator writes, and what is in force. Pure.

* :class:`SandboxConfig` is the strict shape of the document; every member is optional, absent means its default.
* :func:`in_force` gives the :class:`Effective` settings of a stored document; :func:`parse` checks one that is sent.
* An absent ceiling is ``None`` and limits nothing; an empty ``limits.network`` allows no host, 0 Environments are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import MISSING, AfterValidator, Field, ValidationError

from manifests.schema import Cpus, Duration, HarnessId, HostPattern, Image, Memory, Size
from nylorun.http.shape import Body, Shape, problems_of
from nylorun.kernel import durations
from nylorun.kernel.errors import Problem
from vault.bindings import ViaUrl, in_order

HARNESS_CONTAINER, SANDBOX = "harness-container", "sandbox"
NYLORUN: Final = "nylorun"
EVERY_HARNESS: Final = "*"
_LIST_MAX = 1000
_STOP_GRACE_MAX = timedelta(seconds=30)
_STOP_GRACE_MIN = timedelta(seconds=1)
_DISK_BYTES = 64 * durations.GIB
_DEFAULTS: Final[dict[str, Any]] = {
    "resources": {"cpus": 4, "memory": "8192MiB"},
    "defaultResources": {"cpus": 2, "memory": "1024MiB"},
    "idle": "15m",
    "environments": 1000,
}


def _grace(text: str) -> str:
    if not _STOP_GRACE_MIN <= durations.duration(text) <= _STOP_GRACE_MAX:
        raise ValueError("must be from 1s to 30s")
    return text


def _each_once(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(texts))


class Amounts(Shape):
    """Processors and memory."""

    cpus: Cpus | MISSING = MISSING
    memory: Memory | MISSING = MISSING


class Limits(Shape):
    """What no Manifest of the Tenant goes beyond, and what one that says nothing gets."""

    network: Annotated[list[HostPattern], Field(max_length=_LIST_MAX), AfterValidator(in_order)] | MISSING = MISSING
    via: Annotated[list[ViaUrl], Field(max_length=_LIST_MAX), AfterValidator(in_order)] | MISSING = MISSING
    resources: Amounts | MISSING = MISSING
    default_resources: Amounts | MISSING = MISSING
    idle: Duration | MISSING = MISSING
    delete_after: Duration | MISSING = MISSING
    environments: Annotated[int, Field(ge=0, le=1_000_000)] | MISSING = MISSING
    disk_bytes: Size | MISSING = MISSING


class Stop(Shape):
    """How a machine is stopped: ``stopGrace`` lies between asking and killing."""

    stop_grace: Annotated[Duration, AfterValidator(_grace)] | MISSING = MISSING


class Default(Shape):
    """What a pod that names no image runs."""

    image: Image | MISSING = MISSING


class Placement(Shape):
    """Where a harness may run."""

    hosts: Annotated[list[Literal["harness-container", "sandbox"]], Field(min_length=1), AfterValidator(_each_once)]


class SandboxConfig(Shape):
    """The whole document of ``/v1/tenant/sandbox``."""

    limits: Limits | MISSING = MISSING
    lifecycle: Stop | MISSING = MISSING
    default: Default | MISSING = MISSING
    placement: dict[HarnessId | Literal["*"], Placement] | MISSING = MISSING
    harnesses: Annotated[list[HarnessId], Field(max_length=_LIST_MAX), AfterValidator(_each_once)] | MISSING = MISSING


class SandboxRequest(SandboxConfig, Body):
    """The document as it is sent: with the correlation id, which is no part of it."""


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings in force: the document with every default filled in. Memory is in MiB."""

    document: Mapping[str, Any]
    """As it is shown."""
    network: tuple[str, ...] | None
    via: tuple[str, ...]
    cpus: int
    memory_mib: int
    default_cpus: int
    default_memory: str
    idle: timedelta
    delete_after: timedelta | None
    environments: int
    disk_bytes: int
    stop_grace: timedelta
    image: str
    placement: Mapping[str, tuple[str, ...]]
    harnesses: tuple[str, ...]

    def hosts_of(self, harness: str) -> tuple[str, ...]:
        """Where this harness may run: its own entry, else that of ``*``."""
        return self.placement.get(harness, self.placement[EVERY_HARNESS])


def parse(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The document in its normal form and every problem of it; with problems, the first part is empty."""
    try:
        config = SandboxRequest.model_validate(document).model_dump(by_alias=True, exclude={"request_id"})
    except ValidationError as error:
        return {}, problems_of(error, document=document)
    problems = _beyond_limits(in_force(config))
    return ({} if problems else config), problems


def in_force(config: Mapping[str, Any] | None) -> Effective:
    """What a stored document, in its normal form, or none at all means."""
    document = _filled(config or {})
    limits = document["limits"]
    after = limits.get("deleteAfter")
    return Effective(
        document=document,
        network=tuple(limits["network"]) if "network" in limits else None,
        via=tuple(limits.get("via", ())),
        cpus=limits["resources"]["cpus"],
        memory_mib=mib(limits["resources"]["memory"]),
        default_cpus=limits["defaultResources"]["cpus"],
        default_memory=limits["defaultResources"]["memory"],
        idle=durations.duration(limits["idle"]),
        delete_after=None if after is None else durations.duration(after),
        environments=limits["environments"],
        disk_bytes=durations.size(limits["diskBytes"]) if "diskBytes" in limits else _DISK_BYTES,
        stop_grace=durations.duration(document["lifecycle"]["stopGrace"]),
        image=document["default"]["image"],
        placement={harness: tuple(entry["hosts"]) for harness, entry in document["placement"].items()},
        harnesses=tuple(document["harnesses"]),
    )


def mib(text: str) -> int:
    """A size in whole MiB, rounded up."""
    return durations.in_units(durations.size(text), durations.MIB)


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    limits = {**_DEFAULTS, **config.get("limits", {})}
    for name in ("resources", "defaultResources"):
        limits[name] = {**_DEFAULTS[name], **limits[name]}
    return {
        "limits": limits,
        "lifecycle": {"stopGrace": "10s", **config.get("lifecycle", {})},
        "default": {"image": "python:3.13-slim", **config.get("default", {})},
        "placement": {EVERY_HARNESS: {"hosts": [HARNESS_CONTAINER, SANDBOX]}, **config.get("placement", {})},
        "harnesses": list(dict.fromkeys([NYLORUN, *config.get("harnesses", [])])),
    }


def _beyond_limits(effective: Effective) -> list[Problem]:
    """Defaults beyond the limits: every Manifest that says nothing would be refused."""
    problems: list[Problem] = []
    if effective.default_cpus > effective.cpus:
        message = f"must be at most limits.resources.cpus, which is {effective.cpus}"
        problems.append({"path": "/limits/defaultResources/cpus", "message": message})
    if mib(effective.default_memory) > effective.memory_mib:
        message = f"must be at most limits.resources.memory, which is {effective.memory_mib}MiB"
        problems.append({"path": "/limits/defaultResources/memory", "message": message})
    return problems
