"""Disk work as rows see it: Operations begun and finished by hand, as a worker would, without copying a byte."""

from __future__ import annotations

from typing import Any

from environments.models import Environment, Operation
from environments.services import operations, seeds, snapshots
from environments.services.operations import Attempt
from environments.services.versions import Copied
from manifests.store import current_store
from nylorun.blobs import Entry, TreeWriter
from nylorun.record.models import Event
from tests.support.client import Api

LATER = {"Prefer": "respond-async"}


def row(id: str = "demo") -> Environment:
    return Environment.objects.get(pk=id)


def tree(content: str = "one", size: int = 5, files: int = 1) -> Copied:
    """A stored tree of one file with this content; what a version says of it may be told otherwise."""
    with TreeWriter(current_store(), lambda batch: None) as writer:
        writer.add_file(Entry(b"file", "file", 0o644, size=len(content)), [content.encode()])
        stored = writer.finish()
    return Copied(root=stored.root, sha256=stored.sha256, size=size, files=files)


def begun(operation_id: str) -> Attempt:
    attempt = operations.begin(operation_id)
    assert attempt is not None
    return attempt


def asked(api: Api, path: str, body: dict[str, Any] | None = None) -> Operation:
    """The Operation that this request made and did not wait for."""
    answer = api.post(path, body or {}, **LATER)
    assert answer.status == 202, answer.json
    assert answer.headers["Location"] == f"/v1/operations/{answer.json['id']}"
    return Operation.objects.get(pk=answer.json["id"])


def version(api: Api, content: str, id: str = "demo", **copied: int) -> int:
    """Snapshot ``id`` as if its disk held ``content``; the version's number."""
    operation = asked(api, f"/v1/environments/{id}/snapshots")
    assert snapshots.finish(begun(operation.id), tree(content, **copied))
    operation.refresh_from_db()
    assert operation.result is not None
    return int(operation.result["version"])


def fill(operation_id: str) -> bool:
    """A worker wrote the version into the new disk."""
    return seeds.finish(begun(operation_id))


def operation(kind: str, id: str = "demo") -> Operation:
    """The newest Operation of this kind."""
    return Operation.objects.filter(kind=kind, environment_id=id).order_by("-pk")[0]


def events(id: str = "demo") -> list[tuple[str, dict[str, Any]]]:
    return list(Event.objects.filter(stream=id).order_by("seq").values_list("type", "payload"))


def refusal(answer: Any) -> tuple[int, str, int | None]:
    return answer.status, answer.json["code"], answer.json.get("details", {}).get("retryAfterSeconds")
