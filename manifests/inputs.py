"""The input files of a Recipe with their bytes, for whoever fills a new workspace. Outside any transaction.

An entry by hash gives each of its definition files, one of a file artifact that file under its path, and one of a
folder artifact every file of the tree below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from manifests.queries import definition_bytes, input_artifact
from manifests.services import trees


class InputMissing(Exception):
    """What a Recipe names is gone; the text says what, and trying again does not help."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file below the workspace. A ``body`` that is an iterator is to be taken before the next file is asked for."""

    path: str
    body: bytes | Iterator[bytes]


def input_files(entries: Iterable[Mapping[str, Any]]) -> Iterator[InputFile]:
    """Every input file, in the Recipe's order.

    Raises :class:`InputMissing`, and ``ServiceUnavailable`` for content that cannot be read now.
    """
    for entry in entries:
        if "files" in entry:
            for relative, sha256 in sorted(entry["files"].items()):
                yield InputFile(f"{entry['path']}/{relative}", definition_bytes(sha256))
        else:
            yield from _of_artifact(entry["path"], entry["artifactId"], entry["version"])


def _of_artifact(path: str, artifact_id: str, number: int) -> Iterator[InputFile]:
    found = input_artifact(artifact_id, number)
    if found is None:
        raise InputMissing(f"{path}: version {number} of artifact {artifact_id} was deleted")
    kind, version = found
    for relative, size, body in trees.members(version):
        if size is not None:
            yield InputFile(f"{path}/{relative}" if kind == "folder" else path, body)
