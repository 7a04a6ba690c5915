"""Artifacts as input files: which may be named, and what a new workspace gets of them."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest

from environments.models import Environment
from manifests.inputs import InputMissing, input_files
from manifests.models import Artifact, ArtifactVersion
from nylorun.blobs import MemoryStore
from nylorun.kernel.errors import ServiceUnavailable
from tests.artifacts.support import URL, upload, upload_folder, zipped
from tests.support.client import Api

pytestmark = pytest.mark.django_db(transaction=True)

BOX = "/v1/environment-manifests/box"
MISSING = "af_" + "0" * 26


def entry(artifact: str, version: int = 1, path: str = "in") -> dict[str, Any]:
    return {"path": path, "artifactId": artifact, "version": version}


def test_a_manifest_may_name_a_version_that_exists(api: Api) -> None:
    """E-55: a file and a folder, each by its number."""
    file, folder = upload(api, b"1")["artifact"]["id"], upload_folder(api, {"a": b"1"})
    assert api.put(BOX, {"files": [entry(file), entry(folder, path="more")]}).status == 201
    api.post(f"{URL}/{file}/versions", b"2")
    assert api.put(BOX, {"files": [entry(file, 2)]}).json["version"] == 2


def test_every_artifact_that_may_not_be_named_is_told(api: Api) -> None:
    """E-55, E-57: missing, of a Session, of a disk, without this version, together with files that are not held."""
    ids = [upload(api, b"1")["artifact"]["id"] for _ in range(3)]
    Artifact.objects.filter(pk=ids[0]).update(session_id="s-1")
    Artifact.objects.filter(pk=ids[1]).update(environment_uid="6f1c2a4e-6f0e-4a55-9a3c-0d2f3a4b5c6d")
    sha = "sha256:" + "0" * 64
    files = [entry(ids[0]), entry(ids[1]), {"path": "x", "files": {"y": sha}}, entry(ids[2], 2), entry(MISSING),
             entry(ids[2], 2**40), entry(ids[2])]  # fmt: skip
    answer = api.put(BOX, {"files": files})
    assert (answer.status, answer.json["code"]) == (400, "request_rejected")
    assert answer.json["details"]["problems"] == [
        f"files.0: there is no Tenant-wide artifact {ids[0]}.",
        f"files.1: there is no Tenant-wide artifact {ids[1]}.",
        f"files.2: x/y needs {sha}, which is not held: send it with PUT /v1/files/{sha}.",
        f"files.3: artifact {ids[2]} has no version 2.",
        f"files.4: there is no Tenant-wide artifact {MISSING}.",
        f"files.5: artifact {ids[2]} has no version {2**40}.",
    ]
    inline = api.put("/v1/environments/demo", {"files": [entry(MISSING)]})
    assert (inline.status, inline.json["code"]) == (400, "request_rejected")
    assert not Environment.objects.exists()


def test_a_named_artifact_may_be_deleted_and_the_next_create_tells(api: Api) -> None:
    """E-55: a Manifest holds nothing; the check runs again in the transaction of each create."""
    id = upload(api, b"1")["artifact"]["id"]
    assert api.put(BOX, {"files": [entry(id)]}).status == 201
    assert api.delete(f"{URL}/{id}").json["deleted"] is True
    answer = api.put("/v1/environments/demo", {"manifest": "box"})
    assert (answer.status, answer.json["details"]["problems"]) == (
        400, [f"files.0: there is no Tenant-wide artifact {id}."],
    )  # fmt: skip


def body(data: Any) -> bytes:
    return data if isinstance(data, bytes) else b"".join(data)


def test_input_files_come_with_their_bytes(api: Api) -> None:
    """E-55, E-59: a file under its path, a folder's files below it, in the Recipe's order."""
    big = os.urandom(2 << 20)
    file = upload(api, big)["artifact"]["id"]
    folder = upload_folder(api, {"b/c": b"2", "a": b"1", "empty/": b""})
    sha = hashlib.sha256(b"3").hexdigest()
    api.put(f"/v1/files/sha256:{sha}", b"3")
    entries = [entry(folder, path="x/y"), {"path": "z", "files": {"d": f"sha256:{sha}"}}, entry(file, path="data.bin")]
    found = [(one.path, body(one.body)) for one in input_files(entries)]
    assert found == [("x/y/a", b"1"), ("x/y/b/c", b"2"), ("z/d", b"3"), ("data.bin", big)]


def test_a_version_that_is_gone_is_told(api: Api, store: MemoryStore) -> None:
    """E-59: deleted is for good; content that cannot be read now may come back."""
    id = upload(api, b"1")["artifact"]["id"]
    with pytest.raises(InputMissing, match=f"version 2 of artifact {id} was deleted"):
        list(input_files([entry(id, 2)]))
    Artifact.objects.filter(pk=id).update(session_id="s-1")
    with pytest.raises(InputMissing):
        list(input_files([entry(id)]))
    Artifact.objects.filter(pk=id).update(session_id=None)
    for blob in list(store.list()):
        store.delete(blob.key)
    with pytest.raises(ServiceUnavailable):
        list(input_files([entry(id)]))


def bash(api: Api, command: str) -> dict[str, Any]:
    return dict(api.post("/v1/environments/demo/tools/bash", {"command": command}).json)


def test_a_new_workspace_has_its_artifacts_before_the_first_call(served: Api) -> None:
    """E-55, E-59: streamed into the workspace, plain files of mode 0644."""
    big = os.urandom(5 << 20)
    file, folder = upload(served, big)["artifact"]["id"], upload_folder(served, {"b/c.txt": b"2", "a.sh": b"echo hi"})
    files = [entry(file, path="data.bin"), entry(folder, path="tree")]
    assert served.put("/v1/environments/demo", {"files": files}).status == 201
    served.post(f"{URL}/{folder}/versions", zipped({"a.sh": b"other"}))
    found = bash(served, "cat tree/b/c.txt tree/a.sh; wc -c < data.bin; ls -l tree/a.sh | cut -c1-10")
    assert found["output"]["stdout"].split("\n")[:3] == ["2echo hi" + str(len(big)), "-rw-r--r--", ""]
    read = served.get("/v1/environments/demo/files/data.bin")
    assert read.body == big


def test_a_first_call_without_its_input_fails_and_says_why(served: Api) -> None:
    """E-59: the version was deleted after the create; nothing runs in half a workspace."""
    id = upload(served, b"1")["artifact"]["id"]
    assert served.put("/v1/environments/demo", {"files": [entry(id)]}).status == 201
    ArtifactVersion.objects.all().delete()
    answer = bash(served, "touch ran")
    assert (answer["kind"], answer["code"]) == ("failed", "tool.failed")
    assert answer["message"] == f"Input file in: version 1 of artifact {id} was deleted."
