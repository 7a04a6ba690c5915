"""Folder artifacts over HTTP: a ZIP goes in, its tree, single files, differences and a ZIP come out."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile

import pytest

from manifests.models import Artifact, ArtifactVersion, Content
from manifests.services import uploads
from nylorun.blobs import MemoryStore
from nylorun.tenant.models import TenantSetting
from tests.artifacts.support import URL, keep_promises, total_is_right, unzipped, upload, upload_folder, zipped
from tests.support.client import Api

pytestmark = pytest.mark.django_db

FILES = {
    "a/b.txt": b"hello",
    "A/b.txt": b"HELLO",
    "empty/": b"",
    "z.csv.gz": b"\x1f\x8b",
    "ä/ö.json": b"{}",
    "a-b": b"",
}


def test_a_zip_becomes_a_tree(api: Api) -> None:
    """E-198: files by path, case kept, each with size, hash and type."""
    id = upload_folder(api, FILES)
    tree = api.get(f"{URL}/{id}/versions/1/tree").json["entries"]
    paths = ["A/b.txt", "a-b", "a/b.txt", "z.csv.gz", "ä/ö.json"]
    assert [entry["path"] for entry in tree] == paths
    assert tree[2] == {
        "path": "a/b.txt", "size": 5, "contentType": "text/plain",
        "sha256": "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    }  # fmt: skip
    assert tree[3]["contentType"] == "application/gzip"
    artifact = api.get(f"{URL}/{id}").json["artifact"]
    assert (artifact["kind"], artifact["mediaType"]) == ("folder", "application/zip")


def test_the_sum_is_of_the_tree(api: Api) -> None:
    """E-198: the same files in another order, packed otherwise, with or without entries for folders: the same hash."""
    first = upload(api, zipped(FILES), "name=a&kind=folder")["version"]
    names = ["ä/", *reversed(FILES), "A/"]
    again = zipped({name: FILES.get(name, b"") for name in names}, compression=zipfile.ZIP_STORED)
    second = upload(api, again, "name=b&kind=folder")["version"]
    assert (first["sha256"], first["size"]) == (second["sha256"], 14)
    assert upload(api, zipped({**FILES, "a-b": b"1"}), "name=c&kind=folder")["version"]["sha256"] != first["sha256"]
    assert ArtifactVersion.objects.first().file_count == 9  # type: ignore[union-attr]


def test_a_file_of_a_folder_is_read(api: Api) -> None:
    """E-198: raw, with ranges, under its own name; a folder and a missing path are 404."""
    data = os.urandom(2 << 20)
    id = upload_folder(api, {**FILES, "big/ö.bin": data})
    url = f"{URL}/{id}/versions/1/files"
    read = api.get(f"{url}/%C3%A4/%C3%B6.json")
    assert (read.status, read.body, read.headers["Content-Type"]) == (200, b"{}", "application/json")
    assert read.headers["Content-Disposition"] == "attachment; filename*=UTF-8''%C3%B6.json"
    part = api.get(f"{url}/big/%C3%B6.bin", Range="bytes=1000-1999999")
    assert (part.status, part.body) == (206, data[1000:2000000])
    assert part.headers["ETag"] == f'"{hashlib.sha256(data).hexdigest()}"'
    for path in ("a", "empty", "A/B.txt", "a/b.txt/c", "missing"):
        assert api.get(f"{url}/{path}").status == 404
    for path in ("..%2Fa", "a//b.txt", "a/./b.txt", "a%00"):
        assert api.get(f"{url}/{path}").status == 400


def test_two_versions_are_compared(api: Api) -> None:
    """E-198: from the version of the query to the one of the path."""
    id = upload_folder(api, {"same": b"1", "gone/x": b"2", "changed": b"3"})
    api.post(f"{URL}/{id}/versions", zipped({"same": b"1", "changed": b"4", "new": b"2", "folder/": b""}))
    diff = api.get(f"{URL}/{id}/versions/2/diff?from=1").json
    assert diff == {"added": ["new"], "removed": ["gone/x"], "changed": ["changed"]}
    assert api.get(f"{URL}/{id}/versions/1/diff?from=2").json["added"] == ["gone/x"]
    assert api.get(f"{URL}/{id}/versions/latest/diff?from=2").json == {"added": [], "removed": [], "changed": []}
    for query, status in (("?from=3", 404), ("", 400), ("?from=0", 400), ("?from=x", 400), ("?from=99999999999", 400)):
        assert api.get(f"{URL}/{id}/versions/2/diff{query}").status == status


def test_a_folder_is_downloaded_as_a_zip(api: Api) -> None:
    """E-198: every file and folder; equal trees give equal bytes; nothing of it is read for HEAD."""
    files = {**FILES, "big": os.urandom(3 << 20), "text": b"line\n" * 200_000}
    first, second = upload_folder(api, files, "box"), upload_folder(api, dict(reversed(files.items())), "box")
    answer = api.get(f"{URL}/{first}/versions/1/zip")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/zip")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="box.zip"'
    assert unzipped(answer.body) == {**files, "A/": b"", "a/": b"", "ä/": b""}
    assert api.get(f"{URL}/{second}/versions/1/zip").body == answer.body
    assert len(answer.body) < 4 << 20
    head = api.head(f"{URL}/{first}/versions/1/zip")
    assert (head.status, head.body) == (200, b"")
    again = upload(api, answer.body, "name=again&kind=folder")["version"]["sha256"]
    assert again == ArtifactVersion.objects.get(artifact_id=first).sha256


def test_an_empty_zip_is_an_empty_folder(api: Api) -> None:
    """E-198: no entries, but a version."""
    id = upload_folder(api, {})
    assert api.get(f"{URL}/{id}/versions/1/tree").json == {"entries": []}
    assert unzipped(api.get(f"{URL}/{id}/versions/1/zip").body) == {}


def test_each_kind_has_its_routes(api: Api) -> None:
    """E-198: a file route on a folder is 400, and the reverse; a missing version is 404 first."""
    folder, file = upload_folder(api, FILES), upload(api, b"1")["artifact"]["id"]
    assert api.get(f"{URL}/{folder}/versions/1/content").status == 400
    for path in ("tree", "files/a", "diff?from=1", "zip"):
        assert api.get(f"{URL}/{file}/versions/1/{path}").status == 400
        assert api.get(f"{URL}/{file}/versions/2/{path}").status == 404


def test_a_new_version_of_a_folder_is_a_zip(api: Api) -> None:
    """E-198: what is no ZIP is refused and makes no version; its content is released."""
    id = upload_folder(api, FILES)
    answer = api.post(f"{URL}/{id}/versions", b"no zip")
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert api.get(f"{URL}/{id}").json["artifact"]["latestVersion"] == 1
    assert api.post(f"{URL}/{id}/versions", zipped({"a": b"1"})).json["version"]["version"] == 2
    keep_promises()
    assert total_is_right()


def test_a_folder_has_limits(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-198: all files together ``fileBytes``, at most ``LIST_MAX`` entries, folders above a file among them."""
    assert uploads.LIST_MAX == 10_000
    TenantSetting.objects.create(
        name="artifacts.limits", value={"fileBytes": 10_000}, updated_at="2030-01-01T00:00:00Z", updated_by="op"
    )
    bomb = zipped({"a": b"\0" * 5000, "b": b"\0" * 5001})
    assert len(bomb) < 1000
    answer = api.post(f"{URL}?name=a&kind=folder", bomb)
    assert (answer.status, answer.json["details"]) == (413, {"limit": "fileBytes", "limitBytes": 10_000})
    upload_folder(api, {"a": b"\0" * 5000, "b": b"\0" * 5000})
    monkeypatch.setattr(uploads, "LIST_MAX", 4)
    upload_folder(api, {"a/b/c": b"1", "d": b"2"})
    for files in ({"a/b/c": b"1", "d": b"2", "e": b"3"}, {"a/b/c/d/e": b""}):
        answer = api.post(f"{URL}?name=a&kind=folder", zipped(files))
        assert (answer.status, answer.json["details"]) == (413, {"limit": "files", "max": 4})
    assert Artifact.objects.count() == 2
    keep_promises()
    assert total_is_right()


def test_ten_thousand_files_are_taken_quickly(api: Api, store: MemoryStore) -> None:
    """E-198: small files share blobs, so a large folder is few of them."""
    files = {f"d{index % 97:02}/f{index:05}": b"%d" % index for index in range(uploads.LIST_MAX - 97)}
    id = upload_folder(api, files)
    assert len(api.get(f"{URL}/{id}/versions/1/tree").json["entries"]) == len(files)
    assert Content.objects.count() < 60
    assert len(list(store.list())) == Content.objects.count()


def test_a_broken_member_leaves_nothing(api: Api) -> None:
    """E-198, pain 13: a wrong CRC found after other files were stored refuses the whole folder."""
    whole = io.BytesIO(zipped({"a": os.urandom(500_000), "b": b"text"}, compression=zipfile.ZIP_STORED))
    data = whole.getvalue().replace(b"text", b"tEXT")
    answer = api.post(f"{URL}?name=a&kind=folder", data)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert "another content of b" in answer.json["message"]
    assert not Artifact.objects.exists()
    assert keep_promises() == 1
    assert not Content.objects.exists()
