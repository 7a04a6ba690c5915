"""``manage.py blobs`` and the admin: looking after stored content."""

from __future__ import annotations

import os
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from manifests.models import Artifact, ArtifactVersion, Content
from manifests.services.verify import stats
from nylorun.blobs import MemoryStore, StoreUnavailable, write_blob
from nylorun.cli.main import parser
from tests.artifacts.support import URL, keep_promises, upload, upload_folder
from tests.support.client import Api

pytestmark = pytest.mark.django_db


def run(action: str) -> list[str]:
    """The lines of one action."""
    shown = StringIO()
    call_command("blobs", action, stdout=shown)
    return shown.getvalue().splitlines()


def test_what_is_whole_is_verified(api: Api, store: MemoryStore) -> None:
    """E-129: every version, each blob once."""
    assert run("verify") == ["0 versions, 0 blobs, 0 problems"]
    data = os.urandom(500_000)
    id = upload(api, data)["artifact"]["id"]
    api.post(f"{URL}/{id}/versions", data)
    upload_folder(api, {"a/b": data, "c": b"1"})
    assert run("verify") == [f"3 versions, {len(list(store.list()))} blobs, 0 problems"]


def problems(store: MemoryStore) -> list[str]:
    shown = StringIO()
    with pytest.raises(CommandError):
        call_command("blobs", "verify", stdout=shown)
    return shown.getvalue().splitlines()


def test_what_is_missing_damaged_or_unnamed_is_told(api: Api, store: MemoryStore) -> None:
    """E-129, pain 13: by artifact, version and blob; a tree that cannot be read does not hide the others."""
    first, second = upload(api, os.urandom(200_000))["artifact"]["id"], upload(api, b"2" * 100)["artifact"]["id"]
    version = ArtifactVersion.objects.get(artifact_id=first)
    largest = max(store.list(), key=lambda blob: blob.size).key
    stored = store.get(largest)
    store.delete(largest)
    assert problems(store) == [
        f"{first} version 1: Blob {largest} is missing.",
        f"2 versions, {len(list(store.list()))} blobs, 1 problems",
    ]
    store.put(largest, stored[:-1])
    (problem, _) = problems(store)
    assert problem.startswith(f"{first} version 1: Blob {largest} is damaged")
    store.delete(largest)
    store.put(largest, stored)
    Content.objects.filter(holder=version.holder, blob=largest).delete()
    (problem, _) = problems(store)
    assert problem == f"{first} version 1: blob {largest} is needed and no content row names it"
    store.delete(version.root)
    (problem, count) = problems(store)
    assert problem == f"{first} version 1: its tree cannot be read: Blob {version.root} is missing."
    assert count.startswith("2 versions, ")
    assert second not in problem


def test_a_store_that_does_not_answer_is_no_verdict(api: Api, store: MemoryStore, monkeypatch: object) -> None:
    """E-129: one line, exit status 1, and no problem is claimed."""
    upload(api, b"1")

    def away(key: str) -> bytes:
        raise StoreUnavailable("timed out")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "get", away)
        with pytest.raises(CommandError, match="The store of blobs does not work: timed out"):
            run("verify")


def test_what_nothing_names_is_collected(api: Api, store: MemoryStore, clock: object) -> None:
    """E-288: a day after it was deleted, or noticed."""
    id = upload(api, os.urandom(200_000))["artifact"]["id"]
    api.delete(f"{URL}/{id}")
    keep_promises()
    write_blob(store, b"stray")
    kept = len(list(store.list())) - 1
    assert run("gc") == ["0 blobs removed, 1 found that nothing names"]
    clock.advance(hours=24)  # type: ignore[attr-defined]
    assert run("gc") == [f"{kept + 1} blobs removed, 0 found that nothing names"]
    assert list(store.list()) == []


def test_what_is_stored_is_counted(api: Api, store: MemoryStore) -> None:
    """E-129: as it is stored, and as it is counted."""
    upload(api, b"\0" * 1_000_000)
    write_blob(store, b"stray")
    found = stats(store)
    assert (found.stored_blobs, found.named_blobs, found.versions) == (found.named_blobs + 1, found.named_blobs, 1)
    assert found.stored < 100_000 < 1_000_000 < found.raw == found.total
    lines = run("stats")
    assert lines[0].split() == ["stored", "blobs", str(found.stored_blobs)]
    assert [line.split()[-1] for line in lines[4:]] == ["1", "0", str(found.total)]


@pytest.mark.parametrize("action", ["verify", "gc", "stats"])
def test_the_verb_hands_its_action_on(action: str) -> None:
    """The `nylorun` command runs it with the environment of a data folder."""
    arguments = parser().parse_args(["blobs", action, "--data-dir", "d"])
    assert (arguments.command, str(arguments.data_dir)) == (["blobs", action], "d")


def test_artifacts_are_looked_at_in_the_admin(api: Api) -> None:
    """E-198: read only, with their versions, disk artifacts too."""
    id = upload(api, b"1", "name=look.txt")["artifact"]["id"]
    Artifact.objects.filter(pk=id).update(environment_uid="6f1c2a4e-6f0e-4a55-9a3c-0d2f3a4b5c6d")
    client = Client()
    client.force_login(User.objects.create_superuser("op", password="op-password"))
    assert "look.txt" in client.get("/admin/manifests/artifact/?environment_uid__isempty=0").text
    page = client.get(f"/admin/manifests/artifact/{id}/change/")
    assert (page.status_code, ArtifactVersion.objects.get().sha256 in page.text) == (200, True)
    assert client.post(f"/admin/manifests/artifact/{id}/delete/").status_code == 403
    assert client.get("/admin/manifests/artifact/add/").status_code == 403
