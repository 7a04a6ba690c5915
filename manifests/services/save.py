"""Save: a new version of a Manifest under its name, or nothing when the body is the latest version's.

* Saves of one name are serial: the number is chosen under the lock of the name's row, so numbers have no gaps.
* Every check runs before anything is written, and one refusal tells every problem. A dry run is the same without the
  writing.
* Lock: the Manifest row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manifests.models import Manifest, ManifestVersion
from manifests.queries import check_files, effective_settings, latest_version
from manifests.recipe import RecipeProblem, changes, composed, problems_of
from manifests.schema import parse
from manifests.settings import Effective
from nylorun.db.locks import Rank, StartOver
from nylorun.db.tx import Tx, transact
from nylorun.kernel.canonical import canonical_hash
from nylorun.kernel.errors import InvalidRequest, Problem, RequestRejected


@dataclass(frozen=True, slots=True)
class Saved:
    """The version that holds the body now, and whether this save made it."""

    version: ManifestVersion
    created: bool


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a save would do, and what it would change for Environments of the latest version."""

    version: int
    hash: str
    created: bool
    changes: list[dict[str, Any]]


def save_manifest(name: str, document: Mapping[str, Any], *, actor: str) -> Saved:
    """Save ``document`` under ``name``; one transaction, durable when it returns."""
    body, faults = parse(document)

    def work(tx: Tx) -> Saved:
        Manifest.objects.bulk_create([Manifest(name=name)], ignore_conflicts=True)
        if tx.hold(Rank.MANIFEST, Manifest.objects.filter(pk=name), name) is None:
            raise StartOver  # it was deleted between the two statements
        latest = latest_version(name)
        _check(document, body, faults, effective_settings())
        hash_of_body = canonical_hash(body)
        if latest is not None and latest.hash == hash_of_body:
            return Saved(latest, created=False)
        version = ManifestVersion(
            manifest_id=name,
            number=1 if latest is None else latest.number + 1,
            body=body,
            hash=hash_of_body,
            saved_by=actor,
            created_at=tx.now(),
        )
        version.save(force_insert=True)
        return Saved(version, created=True)

    return transact(work)


def rehearse_save(name: str, document: Mapping[str, Any]) -> Rehearsed:
    """Every check of a save and what would come of it; nothing is written."""
    body, faults = parse(document)

    def work(tx: Tx) -> Rehearsed:
        effective = effective_settings()
        latest = latest_version(name)
        _check(document, body, faults, effective)
        hash_of_body = canonical_hash(body)
        created = latest is None or latest.hash != hash_of_body
        number = 0 if latest is None else latest.number
        before = {} if latest is None else _recipe(latest.body, effective)
        return Rehearsed(number + created, hash_of_body, created, changes(before, _recipe(body, effective)))

    return transact(work)


def _check(document: Mapping[str, Any], body: Mapping[str, Any], faults: list[Problem], effective: Effective) -> None:
    """Refuse with every problem: of the shape, of the rules on the fields whose shape is right, of the files."""
    found = _rules(document, body, effective) + check_files(body)
    if faults:
        raise InvalidRequest([*faults, *(problem.pointed() for problem in found)])
    if found:
        texts = [str(problem) for problem in found]
        raise RequestRejected(" ".join(texts), problems=texts)


def _rules(document: Mapping[str, Any], body: Mapping[str, Any], effective: Effective) -> list[RecipeProblem]:
    """The rules on what can be judged: nothing without a kind, and no Slot without the network it needs."""
    wrong = document.keys() - body.keys()
    if "kind" in wrong:
        return []
    judged = {name: value for name, value in body.items() if name != "secrets" or "network" not in wrong}
    return problems_of(body.get("kind", "virtual"), judged, effective)


def _recipe(body: Mapping[str, Any], effective: Effective) -> dict[str, Any]:
    return composed(str(body.get("kind", "virtual")), body, effective)
