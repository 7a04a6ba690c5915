"""File artifacts over HTTP: upload, read, versions, deletion."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest

from manifests.models import Artifact, ArtifactVersion, Content
from manifests.services import content
from nylorun.blobs import MemoryStore, StoreUnavailable
from nylorun.db.tx import database_now
from nylorun.kernel.ids import ulid
from nylorun.record.models import OutboxMessage
from nylorun.tenant.models import TenantSetting
from nylorun.tenant.store import artifact_bytes
from tests.artifacts.support import URL, keep_promises, total_is_right, upload
from tests.support.client import Api

pytestmark = pytest.mark.django_db

DATA = b"a,b\n1,2\n"
SHA = hashlib.sha256(DATA).hexdigest()


def limit(**limits: int) -> None:
    """Set the Tenant's limits."""
    TenantSetting.objects.update_or_create(
        name="artifacts.limits", defaults={"value": limits, "updated_at": "2030-01-01T00:00:00Z", "updated_by": "op"}
    )


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_file_is_uploaded_and_read(api: Api, chunked: bool) -> None:
    """E-198: the artifact and its version; the bytes come back."""
    answer = api.post(f"{URL}?name=data.csv&label=raw", iter([DATA[:3], DATA[3:]]) if chunked else DATA)
    assert answer.status == 201
    artifact, version = answer.json["artifact"], answer.json["version"]
    assert answer.headers["Location"] == f"{URL}/{artifact['id']}"
    assert (artifact["name"], artifact["kind"], artifact["mediaType"]) == ("data.csv", "file", "text/csv")
    assert (artifact["sessionId"], artifact["label"], artifact["latestVersion"]) == (None, "raw", 1)
    assert (version["version"], version["size"], version["sha256"]) == (1, len(DATA), f"sha256:{SHA}")
    assert api.get(f"{URL}/{artifact['id']}").json == {"artifact": artifact, "versions": [version]}
    read = api.get(f"{URL}/{artifact['id']}/versions/1/content")
    assert (read.status, read.body) == (200, DATA)


@pytest.mark.parametrize(
    ("query", "sent", "kept"),
    [
        ("name=a.csv", "application/json", "application/json"),
        ("name=a.csv", "Application/JSON; charset=utf-8", "application/json"),
        ("name=a.csv", "application/octet-stream", "text/csv"),
        ("name=a.csv", "", "text/csv"),
        ("name=a.csv", "no type", "text/csv"),
        ("name=a.csv.gz", "", "application/gzip"),
        ("name=a", "", "application/octet-stream"),
    ],
)
def test_the_media_type_is_the_senders_or_the_names(api: Api, query: str, sent: str, kept: str) -> None:
    """E-198: ``Content-Type`` is the media type; absent or octet-stream: from the name."""
    made = upload(api, DATA, query, Content_Type=sent)
    assert made["artifact"]["mediaType"] == kept
    read = api.get(f"{URL}/{made['artifact']['id']}/versions/latest/content")
    assert read.headers["Content-Type"] == kept


def test_content_never_runs_as_a_page_of_this_server(api: Api) -> None:
    """E-198: attachment, nosniff and a sandboxing policy, whatever its type."""
    made = upload(api, b"<script>", "name=p%C3%A4ge.html")
    read = api.get(f"{URL}/{made['artifact']['id']}/versions/1/content")
    assert read.headers["Content-Disposition"] == "attachment; filename*=UTF-8''p%C3%A4ge.html"
    assert read.headers["X-Content-Type-Options"] == "nosniff"
    assert read.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert read.headers["ETag"] == f'"{hashlib.sha256(b"<script>").hexdigest()}"'


def test_one_range_is_served(api: Api) -> None:
    """E-198: 206 with its bytes, 416 outside, the whole for what is no range; ``If-Range`` guards a resume."""
    data = os.urandom(3 << 20)
    url = f"{URL}/{upload(api, data, 'name=big')['artifact']['id']}/versions/latest/content"
    middle = api.get(url, Range="bytes=1000000-2000000")
    assert (middle.status, middle.headers["Content-Range"]) == (206, f"bytes 1000000-2000000/{len(data)}")
    assert middle.body == data[1000000:2000001]
    assert middle.headers["Content-Length"] == "1000001"
    assert api.get(url, Range="bytes=-5").body == data[-5:]
    assert api.get(url, Range=f"bytes={len(data)}-").status == 416
    assert api.get(url, Range="bytes=0-1,5-6").body == data
    etag = api.head(url).headers["ETag"]
    assert api.get(url, Range="bytes=5-9", If_Range=etag).status == 206
    assert api.get(url, Range="bytes=5-9", If_Range='"another"').body == data
    head = api.head(url)
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(data)))


def test_an_empty_file_is_a_file(api: Api) -> None:
    """E-198: nothing is also a content."""
    made = upload(api, b"")
    assert made["version"]["size"] == 0
    assert api.get(f"{URL}/{made['artifact']['id']}/versions/1/content").body == b""


def test_numbers_are_never_used_twice(api: Api) -> None:
    """E-198: version = highest ever + 1; ``latest`` follows; a missing one is 404."""
    id = upload(api, DATA)["artifact"]["id"]
    second = api.post(f"{URL}/{id}/versions", b"two")
    assert (second.status, second.json["version"]["version"], second.json["artifact"]["latestVersion"]) == (201, 2, 2)
    assert [version["version"] for version in api.get(f"{URL}/{id}").json["versions"]] == [2, 1]
    Artifact.objects.filter(pk=id).update(high_version=7)
    assert api.post(f"{URL}/{id}/versions", b"eight").json["version"]["version"] == 8
    assert api.get(f"{URL}/{id}/versions/latest/content").body == b"eight"
    assert api.get(f"{URL}/{id}/versions/2/content").body == b"two"
    for number, status in (("3", 404), ("999999999", 404), ("0", 400), ("-1", 400), ("new", 400), ("1e9", 400)):
        assert api.get(f"{URL}/{id}/versions/{number}/content").status == status


@pytest.mark.parametrize("name", ["", "a%2Fb", "a%5Cb", ".", "..", "a%0Ab", "a%7Fb", "x" * 256, "a%00b"])
def test_a_name_that_is_none_is_refused(api: Api, name: str) -> None:
    """E-198: 1 to 255 characters without slashes and control characters, no dot name."""
    answer = api.post(f"{URL}?name={name}", DATA)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert not Artifact.objects.exists()


def test_long_names_and_strict_parameters(api: Api) -> None:
    """E-198: 255 characters are taken, whatever their bytes; what is no parameter is refused."""
    assert upload(api, DATA, "name=" + "%C3%A4" * 255)["artifact"]["name"] == "ä" * 255
    for query in ("", "name=a&kind=disk", "name=a&mode=1", "name=a&label=", "name=a&name=b", "name=a&sessionId=%20"):
        assert api.post(f"{URL}?{query}", DATA).status == 400


def test_a_session_that_does_not_exist_is_the_opaque_404(api: Api) -> None:
    """E-198: an upload into it and its list."""
    assert api.post(f"{URL}?name=a&sessionId=s-1", DATA).status == 404
    assert api.get(f"{URL}?sessionId=s-1").json == {"artifacts": [], "nextCursor": None}
    assert not Artifact.objects.exists()


def test_tenant_wide_artifacts_are_missing_to_persons(api: Api) -> None:
    """E-198: a Caller acting for a person reaches artifacts of own Sessions only; a missing scope is told."""
    id = upload(api, DATA)["artifact"]["id"]
    ada = api.as_subject("ada", "sessions:own")
    assert ada.get(URL).json == {"artifacts": [], "nextCursor": None}
    for method, path in (
        ("GET", ""), ("DELETE", ""), ("POST", "/versions"), ("POST", "/links"), ("GET", "/versions/1/content"),
    ):  # fmt: skip
        for target in (id, "af_" + "0" * 26):
            assert ada.request(method, f"{URL}/{target}{path}").status == 404
    assert ada.post(f"{URL}?name=a", DATA).status == 404
    assert api.as_subject("ada", "vaults:own").get(URL).status == 403
    assert Api().get(f"{URL}/{id}").status == 404


def test_disk_artifacts_are_never_reached_here(api: Api) -> None:
    """E-198: not listed, not read, not written, not deleted."""
    id = upload(api, DATA)["artifact"]["id"]
    Artifact.objects.filter(pk=id).update(environment_uid="6f1c2a4e-6f0e-4a55-9a3c-0d2f3a4b5c6d")
    assert api.get(URL).json["artifacts"] == []
    assert api.get(f"{URL}/{id}").status == 404
    assert api.get(f"{URL}/{id}/versions/1/content").status == 404
    assert api.post(f"{URL}/{id}/versions", DATA).status == 404
    assert api.post(f"{URL}/{id}/links", {}).status == 404
    assert api.delete(f"{URL}/{id}").json == {"artifactId": id, "deleted": False}
    assert ArtifactVersion.objects.count() == 1


def test_lists_are_oldest_first_and_paged(api: Api) -> None:
    """E-198: by creation time, then id; a cursor goes on behind its row."""
    ids = [upload(api, b"%d" % index)["artifact"]["id"] for index in range(5)]
    Artifact.objects.filter(pk__in=ids[1:4]).update(created_at="2030-01-01T00:00:00.123456Z")
    Artifact.objects.filter(pk=ids[4]).update(created_at="2029-01-01T00:00:00Z")
    order = [ids[0], ids[4], *sorted(ids[1:4])]
    assert [row["id"] for row in api.get(URL).json["artifacts"]] == order
    seen, cursor = [], ""
    while True:
        page = api.get(f"{URL}?limit=2{cursor}").json
        seen += [row["id"] for row in page["artifacts"]]
        if page["nextCursor"] is None:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert seen == order
    assert api.get(f"{URL}?limit=2&sessionId=s-1{cursor}").status == 400


def test_a_deleted_artifact_gives_its_bytes_back(api: Api) -> None:
    """E-198, E-288: gone at once for every reader; content rows follow, and the total with them."""
    kept = upload(api, DATA)["artifact"]["id"]
    before = artifact_bytes()
    id = upload(api, b"other" * 1000)["artifact"]["id"]
    api.post(f"{URL}/{id}/versions", b"more" * 1000)
    assert api.delete(f"{URL}/{id}").json == {"artifactId": id, "deleted": True}
    assert api.delete(f"{URL}/{id}").json == {"artifactId": id, "deleted": False}
    assert api.get(f"{URL}/{id}").status == 404
    assert keep_promises() == 1
    assert (artifact_bytes(), total_is_right()) == (before, True)
    assert api.get(f"{URL}/{kept}/versions/1/content").body == DATA


def test_equal_content_counts_once(api: Api) -> None:
    """E-129, E-198: each distinct content counts once, and until its last holder is gone."""
    data = os.urandom(300_000)
    first = upload(api, data, "name=a")["artifact"]["id"]
    once = artifact_bytes()
    second = upload(api, data, "name=b")["artifact"]["id"]
    assert (artifact_bytes(), total_is_right()) == (once, True)
    api.delete(f"{URL}/{first}")
    keep_promises()
    assert (artifact_bytes(), total_is_right()) == (once, True)
    api.delete(f"{URL}/{second}")
    keep_promises()
    assert (artifact_bytes(), Content.objects.count()) == (0, 0)


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_file_has_a_limit(api: Api, chunked: bool) -> None:
    """E-198: ``fileBytes`` is taken, one more is 413 however it is sent, and nothing is kept."""
    limit(fileBytes=1000)
    body: Any = iter([b"x" * 1000, b"x"]) if chunked else b"x" * 1001
    answer = api.post(f"{URL}?name=a", body)
    assert (answer.status, answer.json["code"]) == (413, "limit_exceeded")
    assert answer.json["details"] == {"limit": "fileBytes", "limitBytes": 1000}
    assert not Artifact.objects.exists()
    upload(api, iter([b"x" * 1000]) if chunked else b"x" * 1000)


def test_all_content_has_a_limit(api: Api) -> None:
    """E-129, E-198: 413 with ``totalBytes``; what was claimed goes, and what is stored already may be stored again."""
    data = os.urandom(200_000)
    upload(api, data)
    limit(totalBytes=artifact_bytes() + 1000)
    answer = api.post(f"{URL}?name=a", os.urandom(200_000))
    assert (answer.status, answer.json["code"]) == (413, "limit_exceeded")
    assert answer.json["details"] == {"limit": "totalBytes", "limitBytes": artifact_bytes() + 1000}
    keep_promises()
    assert total_is_right()
    limit(totalBytes=0)
    upload(api, data)
    assert api.post(f"{URL}?name=a", b"one more").status == 413


def test_definition_files_count_too(api: Api) -> None:
    """E-58, E-129: once each; beyond the total they are refused and nothing of them stays."""
    name = hashlib.sha256(DATA).hexdigest()
    for status in (201, 200):
        assert api.put(f"/v1/files/sha256:{name}", DATA).status == status
    assert (artifact_bytes(), total_is_right()) == (len(DATA), True)
    limit(totalBytes=len(DATA) + 4)
    other = hashlib.sha256(b"other").hexdigest()
    answer = api.put(f"/v1/files/sha256:{other}", b"other")
    assert (answer.status, answer.json["details"]["limit"]) == (413, "totalBytes")
    assert api.head(f"/v1/files/sha256:{other}").status == 404
    limit(totalBytes=len(DATA) + 5)
    assert api.put(f"/v1/files/sha256:{other}", b"other").status == 201


def test_an_upload_that_breaks_off_leaves_nothing(api: Api, store: MemoryStore) -> None:
    """E-198: neither artifact nor content, however it was sent."""

    def broken() -> Any:
        yield os.urandom(600_000)
        raise ConnectionResetError

    assert api.post(f"{URL}?name=a", broken()).status == 400
    short = api.request("POST", f"{URL}?name=a", os.urandom(2 << 20), {"Content_Length": "2097153"})
    assert (short.status, short.json["code"]) == (400, "invalid_request")
    assert (Artifact.objects.count(), Content.objects.count(), list(store.list())) == (0, 0, [])


def test_a_store_that_fails_midway_leaves_nothing(api: Api, store: MemoryStore) -> None:
    """E-198, E-288: content that was claimed and stored already goes with the outbox."""
    real, left = store.put, [3]

    def failing(key: str, data: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoreUnavailable("away")
        real(key, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put", failing)
        assert api.post(f"{URL}?name=a", os.urandom(40 << 20)).status == 503
    assert (Artifact.objects.exists(), Content.objects.exists()) == (False, True)
    keep_promises()
    assert (Content.objects.count(), artifact_bytes()) == (0, 0)


def test_a_store_that_fails_is_503_and_the_upload_may_come_again(api: Api, store: MemoryStore) -> None:
    """E-198: no version stands on content that is not stored."""

    def full(key: str, data: bytes) -> None:
        raise StoreUnavailable("no space")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put", full)
        answer = api.post(f"{URL}?name=a", DATA)
    assert (answer.status, answer.json["code"]) == (503, "service_unavailable")
    assert answer.headers["Retry-After"] == "5"
    assert not Artifact.objects.exists()
    keep_promises()
    assert Content.objects.count() == 0
    upload(api, DATA)


def test_damaged_content_is_never_answered(api: Api, store: MemoryStore) -> None:
    """E-198, pain 13: what does not match its hash is 503 before the first byte."""
    data = os.urandom(300_000)
    url = f"{URL}/{upload(api, data)['artifact']['id']}/versions/1/content"
    largest = max(store.list(), key=lambda blob: blob.size).key
    stored = store.get(largest)
    store.delete(largest)
    assert api.get(url).status == 503
    store.put(largest, stored[:-1] + bytes([stored[-1] ^ 1]))
    assert api.get(url).status == 503
    store.delete(largest)
    store.put(largest, stored)
    assert api.get(url).body == data


def test_an_upload_slower_than_its_content_is_kept_is_refused(api: Api, store: MemoryStore, clock: Any) -> None:
    """E-288: nothing becomes a version whose content rows may be going."""
    real = store.put

    def slow(key: str, data: bytes) -> None:
        clock.advance(hours=13)
        real(key, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put", slow)
        assert api.post(f"{URL}?name=a", DATA).status == 503
    assert not Artifact.objects.exists()
    upload(api, DATA)


def test_what_a_dead_upload_left_is_released_after_a_day(api: Api, clock: Any) -> None:
    """E-288: its rows are found by the sweep; those of versions and of younger uploads stay."""
    upload(api, DATA)
    dead = ulid("av", database_now())
    content.claim(dead, [("0" * 64, 10), ("1" * 64, 20)])
    clock.advance(hours=23, minutes=59)
    assert content.release_stale_uploads() == 0
    clock.advance(minutes=2)
    young = ulid("av", database_now())
    content.claim(young, [("0" * 64, 10)])
    assert content.release_stale_uploads() == 1
    keep_promises()
    assert not Content.objects.filter(holder=dead).exists()
    assert Content.objects.filter(holder=young, counted=True).count() == 1
    assert (total_is_right(), OutboxMessage.objects.filter(topic=content.TOPIC).count()) == (True, 0)
    assert api.get(f"{URL}/{Artifact.objects.get().pk}/versions/1/content").body == DATA


def test_keys_are_refused_rather_than_forgotten(api: Api) -> None:
    """E-198: an upload with an idempotency key would be made twice; a malformed one is a fault of the request."""
    assert api.post(f"{URL}?name=a", DATA, Idempotency_Key="k-1").json["code"] == "request_rejected"
    assert api.post(f"{URL}?name=a", DATA, Idempotency_Key="k 1").json["code"] == "invalid_request"
    assert not Artifact.objects.exists()


def test_the_limits_are_read_and_replaced(api: Api) -> None:
    """E-198: defaults, the whole document at once, what is used; strict; for applications and their settings scope."""
    url = "/v1/tenant/artifacts"
    assert api.get(url).json == {"fileBytes": 1 << 30, "totalBytes": 100 << 30, "usedBytes": 0}
    upload(api, DATA)
    shown = api.put(url, {"fileBytes": 5, "requestId": "r-1"})
    assert (shown.status, shown.json) == (
        200, {"fileBytes": 5, "totalBytes": 100 << 30, "usedBytes": artifact_bytes()},
    )  # fmt: skip
    assert api.post(f"{URL}?name=a", DATA).status == 413
    assert api.put(url, {"totalBytes": 7}).json["fileBytes"] == 1 << 30
    for body in ({"fileBytes": -1}, {"fileBytes": "5"}, {"totalBytes": 1.5}, {"total": 1}, {"fileBytes": True}):
        assert api.put(url, body).status == 400
    assert TenantSetting.objects.get(name="artifacts.limits").value == {"totalBytes": 7}
    assert api.as_subject("ada", "sessions:own").get(url).status == 403
    assert api.as_subject("ada", "tenant:settings").get(url).status == 200
