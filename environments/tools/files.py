"""Input files of a Recipe, written through the Engine before anything else runs in a new workspace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from environments.compute.channel import EngineChannel
from environments.compute.contract import Answer
from environments.services.workplace import Workplace
from manifests.inputs import InputFile, InputMissing, input_files

FILE_SECONDS = 120.0
"""One small file operation: listing, moving, a slice."""
TRANSFER_SECONDS = 3600.0
"""One whole file of at most ``fileBytes``, at the pace of its client."""


def write_input_files(
    channel: EngineChannel, place: Workplace, call_id: str, entries: Iterable[Mapping[str, Any]]
) -> Answer | None:
    """Write every input file; the failure of the first that could not be written, or ``None``."""
    try:
        for file in input_files(entries):
            answer = _write(channel, place, call_id, file)
            if answer.kind == "failed":
                return _failed(f"{file.path}: {answer.message}")
    except InputMissing as missing:
        return _failed(f"{missing}.")
    return None


def _write(channel: EngineChannel, place: Workplace, call_id: str, file: InputFile) -> Answer:
    return channel.call(
        "write",
        {"path": file.path, "mode": "0644", "createParents": True, "maxBytes": None},
        call_id=call_id,
        epoch=place.epoch,
        time_limit_s=FILE_SECONDS if isinstance(file.body, bytes) else TRANSFER_SECONDS,
        body=file.body,
        **workspace_of(place),
    )


def _failed(message: str) -> Answer:
    return Answer("failed", code="tool.failed", message=f"Input file {message}")


def workspace_of(place: Workplace) -> dict[str, Any]:
    """What the virtual Engine needs to know of a workspace; nothing for a pod."""
    if place.kind != "virtual":
        return {}
    return {
        "workspace": str(place.uid),
        "limits": {"memoryMib": place.memory_mib, "diskBytes": place.disk_bytes},
    }
