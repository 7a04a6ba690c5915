"""Capability links: one file of one version, for whoever holds the URL, until it ends."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from manifests.models import ArtifactVersion
from nylorun.access import signing
from nylorun.access.models import SigningKey
from nylorun.blobs import MemoryStore
from nylorun.db.tx import Clock, database_now
from nylorun.http.handler import OPAQUE
from tests.artifacts.support import URL, upload, upload_folder
from tests.support.client import Api

pytestmark = pytest.mark.django_db

BASE = "http://127.0.0.1:8000"


def link(api: Api, id: str, **body: Any) -> str:
    """The path of a new link."""
    answer = api.post(f"{URL}/{id}/links", body)
    assert answer.status == 201, answer.body
    assert answer.json["url"].startswith(f"{BASE}/v1/artifact-links/ey")
    return str(answer.json["url"].removeprefix(BASE))


def test_a_link_needs_no_credential(api: Api) -> None:
    """E-198: the version of its making, whole or one range, never kept by a cache; no protocol is asked for."""
    id = upload(api, b"one", "name=a.txt")["artifact"]["id"]
    url = link(api, id)
    api.post(f"{URL}/{id}/versions", b"two")
    read = Api().get(url, Nylorun_Protocol="1")
    assert (read.status, read.body, read.headers["Content-Type"]) == (200, b"one", "text/plain")
    assert read.headers["Content-Disposition"] == 'attachment; filename="a.txt"'
    assert read.headers["Cache-Control"] == "private, no-store"
    part = Api().get(url, Range="bytes=1-1")
    assert (part.status, part.body) == (206, b"n")
    assert Api().get(link(api, id)).body == b"two"
    assert Api().get(link(api, id, version=1)).body == b"one"


def test_a_link_leads_to_one_file_of_a_folder(api: Api) -> None:
    """E-198: ``file`` names it; without one there is nothing to read, and a file artifact has none."""
    folder, file = upload_folder(api, {"a/ö.txt": b"x", "b": b"y"}), upload(api, b"1")["artifact"]["id"]
    assert Api().get(link(api, folder, file="a/ö.txt")).body == b"x"
    for id, body, status in (
        (folder, {}, 400), (file, {"file": "a"}, 400), (folder, {"file": "a"}, 404), (folder, {"file": "c"}, 404),
        (folder, {"file": "b", "version": 2}, 404), (file, {"version": 2}, 404), (file, {"version": 0}, 400),
        (folder, {"file": "../b"}, 400), (file, {"expiresIn": 0}, 400), (file, {"expiresIn": 901}, 400),
        (file, {"expiresIn": "5"}, 400), (file, {"for": "ada"}, 400), ("af_" + "0" * 26, {}, 404),
    ):  # fmt: skip
        assert api.post(f"{URL}/{id}/links", body).status == status, (id, body)


def test_a_link_ends(api: Api, clock: Any) -> None:
    """E-198: 300 s unless asked otherwise, then 401, at the very moment it names."""
    id = upload(api, b"one")["artifact"]["id"]
    now = database_now()
    answer = api.post(f"{URL}/{id}/links", {}).json
    ends = signing_time(answer["expiresAt"])
    assert timedelta(seconds=300) <= ends - now < timedelta(seconds=302)
    url, long = answer["url"].removeprefix(BASE), link(api, id, expiresIn=900)
    for moment, status in ((ends - timedelta(microseconds=1), 200), (ends, 401)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Clock, "of", staticmethod(lambda _, moment=moment: moment))
            assert Api().get(url).status == status
    clock.advance(seconds=302)
    over = Api().get(url)
    assert (over.status, over.json["code"]) == (401, "token_expired")
    assert over.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
    assert Api().get(long).status == 200
    clock.advance(seconds=900)
    assert Api().get(long).status == 401


def signing_time(text: str) -> Any:
    """A time of an answer."""
    return type(database_now()).fromisoformat(text)


def test_a_link_dies_with_what_it_leads_to(api: Api) -> None:
    """E-198: with its version, with its artifact, and with the key that signed it."""
    id = upload(api, b"one")["artifact"]["id"]
    url = link(api, id)
    api.post(f"{URL}/{id}/versions", b"two")
    second = link(api, id)
    ArtifactVersion.objects.filter(number=1).delete()
    assert Api().get(url).status == 404
    assert Api().get(second).status == 200
    SigningKey.objects.update(state="revoked", retired_at=database_now())
    assert Api().get(second).status == 401
    SigningKey.objects.update(state="active", retired_at=None)
    api.delete(f"{URL}/{id}")
    assert (Api().get(second).status, Api().get(second).body) == (404, OPAQUE)


@pytest.mark.parametrize("kind", [signing.CALL, signing.HOST, signing.EGRESS])
def test_another_token_is_no_link(api: Api, kind: signing.TokenKind) -> None:
    """E-198: whatever it claims, whoever signed it; nor is a link another token."""
    id = upload(api, b"one")["artifact"]["id"]
    other = signing.mint(kind, id, {"art": id, "ver": 1}, ttl=timedelta(minutes=5), now=database_now())
    assert Api().get(f"/v1/artifact-links/{other}").status == 404
    ours = link(api, id).rpartition("/")[2]
    with pytest.raises(signing.TokenInvalid):
        signing.verify(kind, ours, now=database_now())
    assert Api({"Authorization": f"Bearer {ours}"}).get(f"{URL}/{id}").status == 404


def test_a_changed_link_is_the_opaque_404(api: Api) -> None:
    """E-198: any other token, and one that is none."""
    url = link(api, upload(api, b"one")["artifact"]["id"])
    head, claims, signature = url.split(".")
    for changed in (f"{head}.{claims}.", f"{head}.{claims}x.{signature}", url[:-2], f"{url}.", "/v1/artifact-links/a"):
        answer = Api().get(changed)
        assert (answer.status, answer.body) == (404, OPAQUE)


def test_a_path_too_long_for_a_link_is_refused(api: Api) -> None:
    """E-198: no URL is given that would not open."""
    path = "/".join(["ä" * 250] * 4)
    id = upload_folder(api, {path: b"x"})
    assert api.post(f"{URL}/{id}/links", {"file": path}).status == 400
    fits = "/".join(["a" * 250] * 4)
    assert Api().get(link(api, upload_folder(api, {fits: b"x"}), file=fits)).body == b"x"


def test_the_log_names_the_route_of_a_link(api: Api, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """E-198: a link is a credential, so no log holds one."""
    url = link(api, upload(api, b"one")["artifact"]["id"])
    for blob in list(store.list()):
        store.delete(blob.key)
    with caplog.at_level(logging.DEBUG):
        assert Api().get(url).status == 503
    assert "/v1/artifact-links/<token>" in caplog.text
    assert url.rpartition("/")[2][:40] not in caplog.text
