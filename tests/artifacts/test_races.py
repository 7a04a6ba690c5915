"""Uploads, deletes and removals of one artifact at the same time, on connections of their own."""

from __future__ import annotations

import os
from typing import Any

import pytest

from manifests.models import Artifact, ArtifactVersion, Content
from manifests.services import uploads
from nylorun.http.waiting import room
from nylorun.tenant.models import TenantSetting
from nylorun.tenant.store import artifact_bytes
from tests.artifacts.support import URL, keep_promises, total_is_right, upload
from tests.races.test_manifest_races import together
from tests.support.client import Api

pytestmark = pytest.mark.django_db(transaction=True)


def test_versions_at_once_get_numbers_without_a_gap(api: Api) -> None:
    """E-198: each upload has a number of its own, and ``latest`` is the highest."""
    id = upload(api, b"first")["artifact"]["id"]
    answers = together(10, lambda index: api.post(f"{URL}/{id}/versions", b"%d" % index).json["version"]["version"])
    assert sorted(answers) == list(range(2, 12))
    assert Artifact.objects.get().latest_version == 11
    assert total_is_right()


def test_uploads_at_once_never_pass_the_total(api: Api) -> None:
    """E-214, E-129: of uploads that fit one by one, those that do not fit together are refused."""
    TenantSetting.objects.create(
        name="artifacts.limits", value={"totalBytes": 1_000_000}, updated_at="2030-01-01T00:00:00Z", updated_by="op"
    )
    statuses = together(8, lambda index: api.post(f"{URL}?name=a", os.urandom(300_000)).status)
    assert sorted(statuses) == [201] * 3 + [413] * 5
    assert artifact_bytes() <= 1_000_000
    keep_promises()
    assert (total_is_right(), ArtifactVersion.objects.count()) == (True, 3)


def test_a_delete_that_meets_an_upload(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-198: the version comes too late and is 404; nothing of it is kept."""
    id = upload(api, b"first")["artifact"]["id"]
    real = uploads._file

    def meanwhile(*args: Any) -> Any:
        tree = real(*args)
        assert together(1, lambda index: api.delete(f"{URL}/{id}").json["deleted"]) == [True]
        return tree

    monkeypatch.setattr(uploads, "_file", meanwhile)
    assert api.post(f"{URL}/{id}/versions", os.urandom(100_000)).status == 404
    keep_promises()
    assert (Artifact.objects.count(), Content.objects.count(), artifact_bytes()) == (0, 0, 0)


def test_uploads_and_deletes_of_the_same_content_at_once(api: Api) -> None:
    """E-129, E-288: whatever the order, what is there can be read and the total is right."""
    pool = [os.urandom(50_000) for _ in range(3)]

    def work(index: int) -> None:
        for turn in range(4):
            data = pool[(index + turn) % 3]
            id = upload(api, data, f"name={index}-{turn}")["artifact"]["id"]
            assert api.get(f"{URL}/{id}/versions/1/content").body == data
            if turn % 2:
                assert api.delete(f"{URL}/{id}").json["deleted"]

    assert together(4, work) == [None] * 4
    keep_promises()
    assert (total_is_right(), Artifact.objects.count()) == (True, 8)
    for row in api.get(URL).json["artifacts"]:
        assert api.get(f"{URL}/{row['id']}/versions/latest/content").status == 200


def test_an_upload_takes_a_waiting_place_only_while_it_lasts(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """http §1.9: a body that comes slowly is long work, refused with 503 when all places are taken."""
    monkeypatch.setattr(room, "enter", lambda places: False)
    assert upload(api, b"small")["version"]["size"] == 5
    answer = api.post(f"{URL}?name=a", os.urandom(100_000))
    assert (answer.status, answer.json["code"]) == (503, "service_unavailable")
    monkeypatch.undo()
    id = upload(api, os.urandom(3 << 20))["artifact"]["id"]
    assert room.waiting == 0
    reading = api.get(f"{URL}/{id}/versions/1/content")
    pieces = reading.chunks()
    next(pieces)
    assert room.waiting == 1
    pieces.close()
    assert room.waiting == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "enter", lambda places: False)
        assert api.get(f"{URL}/{id}/versions/1/content").status == 503
        assert api.get(f"{URL}/{id}/versions/1/content", Range="bytes=0-9").status == 206


def test_a_process_stores_a_few_uploads_at_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """http §1.9: storing takes memory, so its places are few; one that gets none in time is told to come again."""
    monkeypatch.setattr(uploads, "WRITER_SECONDS", 0.05)
    for _ in range(uploads.WRITERS):
        assert uploads._writers.acquire(timeout=1)
    try:
        assert api.post(f"{URL}?name=a", b"1").status == 503
    finally:
        for _ in range(uploads.WRITERS):
            uploads._writers.release()
    upload(api, b"1")
