"""The shape of a Manifest body: strict, with every bound, and in one normal form. Pure.

* :class:`ManifestBody` is the shape of a saved body and of the ten inline fields of a request. Absent is absent: no
  default is filled in here, and ``null`` is a wrong type everywhere.
* :func:`normal` gives the checked members as plain data: memory as ``<n>MiB`` and storage as ``<n>GiB``, both rounded
  up; hosts lower-cased, unique and sorted; Slots in the normal form of :mod:`vault.bindings`; durations as sent.
* :func:`json_schema` is the same shape as JSON Schema 2020-12, for editors and callers.

What a field means for a kind, and what the Tenant allows, is :mod:`manifests.recipe`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import MISSING, AfterValidator, Discriminator, Field, Tag, ValidationError, WithJsonSchema

from nylorun.http.shape import Body, Shape, problems_of
from nylorun.kernel import durations
from nylorun.kernel.errors import Problem
from vault import bindings
from vault.bindings import SecretName, Slot, in_order
from vault.hosts import PATTERN, host_pattern

KINDS: Final = ("virtual", "pod", "none")
FIELDS: Final = (
    "kind", "image", "resources", "storage", "network", "harness", "lifecycle", "setup", "files", "secrets",
)  # fmt: skip
HARNESS = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
DEFINITION = re.compile(r"sha256:[0-9a-f]{64}")
ARTIFACT = re.compile(r"af_[0-9a-hjkmnp-tv-z]{26}")

_DURATION = r"^\s*[0-9]+(ms|s|m|h|d)\s*$"
_SIZE = r"^\s*[0-9]+(B|KiB|MiB|GiB|TiB)\s*$"
_MEMORY_MIN_MIB = 128
_STORAGE_MAX_GIB = 1024


def duration(text: str) -> str:
    """A duration as it was sent, trimmed."""
    durations.duration(text)
    return text.strip()


def size(text: str) -> str:
    """A size as it was sent, trimmed."""
    durations.size(text)
    return text.strip()


def memory(text: str) -> str:
    """A size in whole MiB, rounded up, at least 128 MiB."""
    amount = durations.size(text)
    if amount < _MEMORY_MIN_MIB * durations.MIB:
        raise ValueError(f"must be at least {_MEMORY_MIN_MIB}MiB")
    return f"{durations.in_units(amount, durations.MIB)}MiB"


def storage(text: str) -> str:
    """A size in whole GiB, rounded up, at most 1024 of them."""
    amount = durations.in_units(durations.size(text), durations.GIB)
    if amount > _STORAGE_MAX_GIB:
        raise ValueError(f"must be at most {_STORAGE_MAX_GIB}GiB")
    return f"{amount}GiB"


def image(text: str) -> str:
    """An image reference: anything without whitespace."""
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("must not hold whitespace")
    return text


def relative_path(text: str) -> str:
    """A path below ``/workspace``."""
    if "\0" in text or any(part in {"", ".", ".."} for part in text.split("/")):
        raise ValueError("must be a relative path without empty, . or .. parts")
    return text


Duration = Annotated[str, AfterValidator(duration), WithJsonSchema({"type": "string", "pattern": _DURATION})]
Size = Annotated[str, AfterValidator(size), WithJsonSchema({"type": "string", "pattern": _SIZE})]
Memory = Annotated[str, AfterValidator(memory), WithJsonSchema({"type": "string", "pattern": _SIZE})]
Storage = Annotated[str, AfterValidator(storage), WithJsonSchema({"type": "string", "pattern": _SIZE})]
Cpus = Annotated[int, Field(ge=1, le=64)]
Image = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(image)]
HarnessId = Annotated[str, Field(pattern=f"^{HARNESS.pattern}$")]
HostPattern = Annotated[str, AfterValidator(host_pattern), Field(json_schema_extra={"pattern": PATTERN})]
RelativePath = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(relative_path)]
Command = Annotated[str, Field(min_length=1, max_length=4096)]
Hash = Annotated[str, Field(pattern=f"^{DEFINITION.pattern}$")]
Allowed = Annotated[list[HostPattern], Field(max_length=200), AfterValidator(in_order)]


class Resources(Shape):
    """What a machine may use; the Tenant's defaults fill in what is absent."""

    cpus: Cpus | MISSING = MISSING
    memory: Memory | MISSING = MISSING


class Network(Shape):
    """The way out: hosts, and for pods also ``*.x``. Absent, or with no host, there is none."""

    allow: Allowed | MISSING = MISSING


class Lifecycle(Shape):
    """When a machine is suspended, what is kept of it, and when it is deleted."""

    idle: Duration | MISSING = MISSING
    delete_after: Duration | MISSING = MISSING
    on_lost: Literal["refuse", "restore"] | MISSING = MISSING
    snapshot: Literal["never", "suspend"] | MISSING = MISSING
    keep: Annotated[int, Field(ge=1, le=1000)] | MISSING = MISSING


class ArtifactFile(Shape):
    """An input file or folder taken from a Tenant-wide artifact."""

    path: RelativePath
    artifact_id: Annotated[str, Field(pattern=f"^{ARTIFACT.pattern}$")]
    version: Annotated[int, Field(ge=1)]


class HashedFiles(Shape):
    """Input files below ``path``, by the hash of definition files that the Tenant holds."""

    path: RelativePath
    files: Annotated[dict[RelativePath, Hash], Field(min_length=1, max_length=500)]


def _form(value: Any) -> str:
    """The two forms of an input file are told apart by the presence of ``files``."""
    by_hash = "files" in value if isinstance(value, Mapping) else isinstance(value, HashedFiles)
    return "form by hash" if by_hash else "form of an artifact"


InputFile = Annotated[
    Annotated[ArtifactFile, Tag("form of an artifact")] | Annotated[HashedFiles, Tag("form by hash")],
    Discriminator(_form),
]


class ManifestBody(Shape):
    """What a person saves, or sends inline: the description of what an Environment runs."""

    kind: Literal["virtual", "pod", "none"] | MISSING = MISSING
    image: Image | MISSING = MISSING
    resources: Resources | MISSING = MISSING
    storage: Storage | MISSING = MISSING
    network: Network | MISSING = MISSING
    harness: HarnessId | MISSING = MISSING
    lifecycle: Lifecycle | MISSING = MISSING
    setup: Annotated[list[Command], Field(min_length=1, max_length=50)] | MISSING = MISSING
    files: Annotated[list[InputFile], Field(min_length=1, max_length=50)] | MISSING = MISSING
    secrets: Annotated[dict[SecretName, Slot], Field(min_length=1, max_length=64)] | MISSING = MISSING


class SaveRequest(ManifestBody, Body):
    """A body as it is sent: with the correlation id, which is no part of it."""


def normal(body: ManifestBody) -> dict[str, Any]:
    """The fields that were sent, in their normal form; members of a subclass are left out."""
    members = body.model_dump(by_alias=True, include=set(FIELDS))
    if "secrets" in members:
        members["secrets"] = {name: bindings.normal(slot) for name, slot in members["secrets"].items()}
    return members


def parse(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The normal form of a body and every problem of it.

    With problems, the first part holds the fields that are right on their own: rules can be checked on them too.
    """
    try:
        return normal(SaveRequest.model_validate(document)), []
    except ValidationError as error:
        problems = problems_of(error, document=document)
        wrong = {fault["loc"][0] for fault in error.errors(include_url=False) if fault["loc"]}
    sound = {name: document[name] for name in FIELDS if name in document and name not in wrong}
    return normal(ManifestBody.model_validate(sound)), problems


def json_schema() -> dict[str, Any]:
    """The body as JSON Schema 2020-12."""
    schema = ManifestBody.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Environment Manifest",
    }
