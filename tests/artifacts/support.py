"""Archives, uploads and looks at the rows, for the tests of artifacts."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

from django.db.models import Sum

from manifests.models import Content, DefinitionFile
from manifests.services import content
from nylorun.record.models import OutboxMessage
from nylorun.tenant.store import artifact_bytes
from tests.support.client import Api

URL = "/v1/artifacts"


def zipped(files: Mapping[str, bytes], **options: Any) -> bytes:
    """A ZIP archive of these files; a path that ends with a slash is a folder."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", **{"compression": zipfile.ZIP_DEFLATED, **options}) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return whole.getvalue()


def unzipped(data: bytes) -> dict[str, bytes]:
    """What an archive holds."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {info.filename: archive.read(info) for info in archive.infolist()}


def upload(api: Api, data: Any, query: str = "name=data.csv", **headers: str) -> Any:
    """Upload an artifact; its answer's body."""
    answer = api.post(f"{URL}?{query}", data, **headers)
    assert answer.status == 201, answer.body
    return answer.json


def upload_folder(api: Api, files: Mapping[str, bytes], name: str = "box") -> str:
    """Upload a folder; its id."""
    return str(upload(api, zipped(files), f"name={name}&kind=folder")["artifact"]["id"])


def total_is_right() -> bool:
    """The Tenant's total is what its rows say: one counted row for each blob that is named, and every file."""
    counted = Content.objects.filter(counted=True)
    blobs = Content.objects.values("blob").distinct().count()
    files = DefinitionFile.objects.aggregate(size=Sum("size"))["size"] or 0
    stored = counted.aggregate(size=Sum("size"))["size"] or 0
    return counted.count() == blobs and artifact_bytes() == stored + files


def keep_promises() -> int:
    """Do what the outbox says about content, as a worker does; how many rows there were."""
    promised = list(OutboxMessage.objects.filter(topic=content.TOPIC).values_list("payload", flat=True))
    for payload in promised:
        content.remove(payload["key"])
    return len(promised)
