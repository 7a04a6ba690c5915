"""Definition files over HTTP."""

import hashlib
from types import SimpleNamespace

import pytest

from manifests import content
from manifests.models import DefinitionFile
from manifests.services.files import DEFINITION_FILE_MAX
from tests.support.client import Api

pytestmark = pytest.mark.django_db

DATA = b"# Skill\n\xff\x00"
NAME = "sha256:" + hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The data folder of this test."""
    settings = SimpleNamespace(data_dir=tmp_path)
    monkeypatch.setattr(content, "config", SimpleNamespace(current=lambda: settings))
    return tmp_path


def files(folder):
    """Every file below the folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_is_sent_once(api, folder):
    """E-58: 201 new, 200 held; any bytes, any media type."""
    assert api.head(f"/v1/files/{NAME}").status == 404
    first = api.put(f"/v1/files/{NAME}", DATA, Content_Type="text/markdown")
    assert (first.status, first.json) == (201, {"sha256": NAME, "size": len(DATA)})
    assert first.headers["Location"] == f"/v1/files/{NAME}"
    again = api.put(f"/v1/files/{NAME}", b"not read")
    assert (again.status, again.json) == (200, {"sha256": NAME, "size": len(DATA)})
    held = api.head(f"/v1/files/{NAME}")
    assert (held.status, held.body) == (200, b"")
    assert DefinitionFile.objects.count() == 1
    assert [path.read_bytes() for path in files(folder)] == [DATA]


def test_chunked_uploads_are_taken(api):
    """E-58: a length need not be known."""
    assert api.put(f"/v1/files/{NAME}", iter([DATA[:3], DATA[3:]])).status == 201


def test_other_content_is_refused(api, folder):
    """E-58: 400 with both hashes, nothing is kept."""
    answer = api.put(f"/v1/files/{NAME}", DATA + b"x")
    actual = "sha256:" + hashlib.sha256(DATA + b"x").hexdigest()
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert answer.json["details"] == {"expected": NAME, "actual": actual}
    assert files(folder) == []
    assert api.head(f"/v1/files/{NAME}").status == 404


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_the_limit_is_10_mib(api, folder, chunked):
    """E-58: on the limit is taken, one byte more is 413 however it is sent."""
    whole = b"x" * DEFINITION_FILE_MAX
    assert DEFINITION_FILE_MAX == 10 * 1024 * 1024
    more = whole + b"x"
    answer = api.put(f"/v1/files/{NAME}", iter([whole, b"x"]) if chunked else more)
    assert (answer.status, answer.json["code"]) == (413, "limit_exceeded")
    assert answer.json["details"] == {"limit": "file", "limitBytes": DEFINITION_FILE_MAX}
    assert files(folder) == []
    name = "sha256:" + hashlib.sha256(whole).hexdigest()
    assert api.put(f"/v1/files/{name}", iter([whole]) if chunked else whole).json["size"] == DEFINITION_FILE_MAX


@pytest.mark.parametrize(
    "name",
    [NAME.upper(), NAME[:-1], NAME + "0", NAME.replace("sha256", "sha512"), NAME[7:], "sha256:", "sha256:" + "g" * 64,
     "..%2F" + NAME, "%2e%2e", NAME + "%00", NAME + "%0A"],
)  # fmt: skip
def test_another_name_is_refused(api, folder, name):
    """E-58: 400, and no path is made of it."""
    assert api.put(f"/v1/files/{name}", DATA).status == 400
    assert api.head(f"/v1/files/{name}").status == 400
    assert files(folder) == []


def test_an_encoded_colon_is_the_same_name(api):
    """E-58: segments are decoded before they are read."""
    assert api.put(f"/v1/files/{NAME.replace(':', '%3A')}", DATA).status == 201
    assert api.head(f"/v1/files/{NAME}").status == 200


def test_a_manifest_may_name_what_is_held(api):
    """E-56: the same save that was refused succeeds once the file is there."""
    body = {"files": [{"path": "skills/a", "files": {"SKILL.md": NAME}}]}
    refused = api.put("/v1/environment-manifests/box", body)
    assert refused.status == 400
    assert f"PUT /v1/files/{NAME}" in refused.json["message"]
    api.put(f"/v1/files/{NAME}", DATA)
    assert api.put("/v1/environment-manifests/box", body).status == 201


def test_who_may_send_files(api):
    """E-58: a scope for changes; strangers see nothing; content is never read back."""
    assert api.as_subject("ada", "environments:write").put(f"/v1/files/{NAME}", DATA).status == 201
    reader = api.as_subject("ada", "sessions:own")
    assert reader.put(f"/v1/files/{NAME}", DATA).status == 403
    assert reader.head(f"/v1/files/{NAME}").status == 403
    assert Api().put(f"/v1/files/{NAME}", DATA).status == 404
    answer = api.get(f"/v1/files/{NAME}")
    assert (answer.status, answer.headers["Allow"]) == (405, "HEAD, PUT")
