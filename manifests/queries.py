"""What the library holds, for those who build on it. Nothing here locks or writes.

* :func:`version_for` finds the version a reference means now.
* :func:`effective_settings` reads the Tenant's sandbox settings each time: nothing is cached.
* :func:`check_files` tells every input file of a Recipe that is not held; call it in the transaction that relies on it.
* :func:`definition_bytes` gives verified content, outside any transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.db.models import Count, QuerySet

from manifests import content
from manifests.errors import ManifestNotFound
from manifests.models import Artifact, ArtifactVersion, DefinitionFile, ManifestVersion
from manifests.recipe import RecipeProblem
from manifests.references import Reference
from manifests.settings import Effective, in_force
from nylorun.kernel.errors import InvalidRequest
from nylorun.tenant.store import SANDBOX_CONFIG, setting

VERSION_MAX = 2**31 - 1


def effective_settings() -> Effective:
    """The sandbox settings in force now."""
    return in_force(setting(SANDBOX_CONFIG))


def latest_version(name: str) -> ManifestVersion | None:
    """The newest version of a name, or ``None``."""
    return ManifestVersion.objects.filter(manifest_id=name).order_by("-number").first()


def version_for(reference: Reference | str) -> ManifestVersion:
    """The version a reference means now.

    Raises :class:`ManifestNotFound`, with one message for an unknown name and one for an unknown version; a text that
    is no reference is :class:`InvalidRequest` at ``/manifest``.
    """
    wanted = _parsed(reference) if isinstance(reference, str) else reference
    version = latest_version(wanted.name)
    if version is None:
        raise ManifestNotFound(wanted.name)
    if wanted.version in (None, version.number):
        return version
    found = ManifestVersion.objects.filter(manifest_id=wanted.name, number=wanted.version).first()
    if found is None:
        raise ManifestNotFound(wanted.name, wanted.version)
    return found


def environments_of(name: str) -> int:
    """How many Environments were made from any version of a name, those being deleted too."""
    counted = ManifestVersion.objects.filter(manifest_id=name).aggregate(environments=Count("environments"))
    return int(counted["environments"])


def environments_by_name(names: Iterable[str]) -> dict[str, int]:
    """The same for several names at once."""
    rows = ManifestVersion.objects.filter(manifest_id__in=list(names)).values_list("manifest_id")
    return dict(rows.annotate(used=Count("environments")).order_by())


def latest_of(names: list[str]) -> list[ManifestVersion]:
    """The newest version of each of these names, by name."""
    rows = ManifestVersion.objects.filter(manifest_id__in=names)
    return list(rows.order_by("manifest_id", "-number").distinct("manifest_id"))


def versions_of(name: str) -> QuerySet[ManifestVersion]:
    """All versions of a name, newest first, each with ``used``: the Environments made from it."""
    return ManifestVersion.objects.filter(manifest_id=name).annotate(used=Count("environments")).order_by("-number")


def check_files(recipe: Mapping[str, Any]) -> list[RecipeProblem]:
    """Every input file of a Recipe that the Tenant does not hold: each artifact, and each distinct hash once."""
    entries = list(enumerate(recipe.get("files", ())))
    problems = [*_missing_artifacts(entries), *_missing_definitions(entries)]
    return sorted(problems, key=lambda problem: int(problem.field[1]))


def input_artifact(artifact_id: str, number: int) -> tuple[str, ArtifactVersion] | None:
    """Kind and version of a Tenant-wide artifact, or ``None``."""
    versions = ArtifactVersion.objects.filter(artifact__in=Artifact.objects.tenant_wide(), artifact_id=artifact_id)
    version = versions.filter(number=number).select_related("artifact").first()
    return None if version is None else (version.artifact.kind, version)


def definition_bytes(name: str) -> bytes:
    """The content of ``sha256:<hex>``, compared with its hash; outside any transaction."""
    return content.read(name.removeprefix("sha256:"))


def _missing_artifacts(entries: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[RecipeProblem]:
    wanted = {index: (entry["artifactId"], entry["version"]) for index, entry in entries if "files" not in entry}
    artifacts = Artifact.objects.tenant_wide().filter(pk__in={artifact for artifact, _ in wanted.values()})
    known = set(artifacts.values_list("pk", flat=True)) if wanted else set()
    numbers = {number for _, number in wanted.values() if number <= VERSION_MAX}
    versions = ArtifactVersion.objects.filter(artifact_id__in=known, number__in=numbers)
    held = set(versions.values_list("artifact_id", "number")) if known else set()
    for index, (artifact, number) in wanted.items():
        if artifact not in known:
            yield RecipeProblem(("files", str(index)), f"there is no Tenant-wide artifact {artifact}")
        elif (artifact, number) not in held:
            yield RecipeProblem(("files", str(index)), f"artifact {artifact} has no version {number}")


def _missing_definitions(entries: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[RecipeProblem]:
    wanted: dict[str, tuple[int, str]] = {}
    for index, entry in entries:
        for path, name in entry.get("files", {}).items():
            wanted.setdefault(name, (index, f"{entry['path']}/{path}"))
    held = _held(wanted)
    for name, (index, path) in wanted.items():
        if name not in held:
            message = f"{path} needs {name}, which is not held: send it with PUT /v1/files/{name}"
            yield RecipeProblem(("files", str(index)), message)


def _held(names: Iterable[str]) -> set[str]:
    wanted = [name.removeprefix("sha256:") for name in names]
    rows = DefinitionFile.objects.filter(sha256__in=wanted) if wanted else DefinitionFile.objects.none()
    return {f"sha256:{sha256}" for sha256 in rows.values_list("sha256", flat=True)}


def _parsed(text: str) -> Reference:
    try:
        return Reference.parse(text)
    except ValueError as error:
        raise InvalidRequest([{"path": "/manifest", "message": str(error)}]) from None
