"""Input files of a Recipe, written through the Engine before anything else runs in a new workspace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from environments.compute.channel import EngineChannel
from environments.compute.contract import Answer
from environments.services.calls import Workplace
from manifests.queries import definition_bytes

FILE_SECONDS = 120.0
"""One small file operation: listing, moving, a slice."""
TRANSFER_SECONDS = 3600.0
"""One whole file of at most ``fileBytes``, at the pace of its client."""


def input_files(entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Path below the workspace and hash of every input file, in the Recipe's order."""
    for entry in entries:
        for relative, sha256 in sorted(entry.get("files", {}).items()):
            yield f"{entry['path']}/{relative}", sha256


def write_input_files(
    channel: EngineChannel, place: Workplace, call_id: str, entries: Iterable[Mapping[str, Any]]
) -> Answer | None:
    """Write every input file; the failure of the first that could not be written, or ``None``."""
    for path, sha256 in input_files(entries):
        answer = channel.call(
            "write",
            {"path": path, "mode": "0644", "createParents": True, "maxBytes": None},
            call_id=call_id,
            epoch=place.epoch,
            time_limit_s=FILE_SECONDS,
            body=definition_bytes(sha256),
            **workspace_of(place),
        )
        if answer.kind == "failed":
            return Answer("failed", code="tool.failed", message=f"Input file {path}: {answer.message}")
    return None


def workspace_of(place: Workplace) -> dict[str, Any]:
    """What the virtual Engine needs to know of a workspace; nothing for a pod."""
    if place.kind != "virtual":
        return {}
    return {
        "workspace": str(place.uid),
        "limits": {"memoryMib": place.memory_mib, "diskBytes": place.disk_bytes},
    }
