"""Saves and deletes of one name at the same time, on connections of their own."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from types import SimpleNamespace

import pytest
from django.db import IntegrityError, connection

from environments.models import Environment
from manifests import content
from manifests.errors import ManifestInUse, ManifestNotFound
from manifests.models import Manifest, ManifestVersion
from manifests.queries import environments_of, version_for
from manifests.services import remove, sandbox
from manifests.services.files import keep_file
from manifests.services.remove import remove_manifest
from manifests.services.save import save_manifest
from nylorun.db.tx import database_now, transact

pytestmark = pytest.mark.django_db(transaction=True)

WAIT = 20


def together(count, work):
    """Run ``work(index)`` on that many connections, all begun at once; results and exceptions in order."""
    barrier = Barrier(count)

    def run(index):
        try:
            connection.ensure_connection()
            barrier.wait(WAIT)
            return work(index)
        except Exception as error:  # noqa: BLE001 an outcome to look at
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def insert_from(version, id):
    """An Environment row made from a version, in the transaction that is open."""
    now = database_now()
    Environment.objects.create(
        id=id, kind="none", recipe={}, applied={}, manifest=version, manifest_name=version.manifest_id,
        manifest_version_number=version.number, manifest_hash="", last_used_at=now, created_at=now, updated_at=now,
    )  # fmt: skip


def numbers(name):
    """The numbers of a name's versions."""
    return list(ManifestVersion.objects.filter(manifest_id=name).order_by("number").values_list("number", flat=True))


def test_twenty_saves_at_once_get_twenty_numbers_without_a_gap():
    """E-40: the next number is chosen under the lock; nobody fails, nothing is lost."""
    outcomes = together(20, lambda index: save_manifest("box", {"kind": "pod", "setup": [str(index)]}, actor="a"))
    assert sorted(saved.version.number for saved in outcomes) == list(range(1, 21))
    assert numbers("box") == list(range(1, 21))
    bodies = {version.body["setup"][0] for version in ManifestVersion.objects.all()}
    assert bodies == {str(index) for index in range(20)}


def test_the_same_body_at_once_is_one_version():
    """E-44: one creates, the others find it."""
    outcomes = together(10, lambda index: save_manifest("box", {"kind": "pod"}, actor=str(index)))
    assert Counter(saved.created for saved in outcomes) == {True: 1, False: 9}
    assert numbers("box") == [1]


def test_saves_and_deletes_at_once_leave_whole_names():
    """E-40, E-41: whatever the order, numbers count from 1 without a gap and a name has versions or is gone."""

    def work(index):
        if index % 3 == 2:
            return remove_manifest("box")
        return save_manifest("box", {"kind": "pod", "setup": [str(index)]}, actor="a")

    outcomes = together(12, work)
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    made = sum(not isinstance(outcome, int) and outcome.created for outcome in outcomes)
    gone = sum(outcome for outcome in outcomes if isinstance(outcome, int))
    assert failed == []
    assert numbers("box") == list(range(1, made - gone + 1))
    assert Manifest.objects.filter(pk="box").exists() is (made > gone)


def test_a_delete_that_wins_over_a_create_makes_its_commit_fail():
    """E-46: the row would name a version that is gone; the create is answered as one of an unknown name."""
    version = save_manifest("box", {"kind": "none"}, actor="a").version
    inserted, deleted = Event(), Event()

    def create(tx):
        insert_from(version, "demo")
        inserted.set()
        assert deleted.wait(WAIT)

    def work(index):
        if index == 0:
            return transact(create)
        assert inserted.wait(WAIT)
        try:
            return remove_manifest("box")
        finally:
            deleted.set()

    created, removed = together(2, work)
    assert isinstance(created, IntegrityError)
    assert removed == 1
    assert not Environment.objects.exists()
    with pytest.raises(ManifestNotFound):
        version_for("box")


def test_a_delete_that_loses_to_a_create_is_refused(monkeypatch):
    """E-46: a create that committed after the count is seen at the latest at the commit of the delete."""
    version = save_manifest("box", {"kind": "none"}, actor="a").version
    counts = []

    def count_then_lose(name):
        counted = environments_of(name)
        if not counts:
            assert together(1, lambda index: transact(lambda tx: insert_from(version, "demo"))) == [None]
        counts.append(counted)
        return counted

    monkeypatch.setattr(remove, "environments_of", count_then_lose)
    with pytest.raises(ManifestInUse) as caught:
        remove_manifest("box")
    assert counts == [0, 1]
    assert caught.value.details == {"environments": 1}
    assert version_for("box").pk == version.pk
    assert Environment.objects.get().manifest_id == version.pk


def test_the_same_content_sent_at_once_is_one_file(tmp_path, monkeypatch):
    """E-58: every sender succeeds, one of them made it."""
    settings = SimpleNamespace(data_dir=tmp_path)
    monkeypatch.setattr(content, "config", SimpleNamespace(current=lambda: settings))
    sha = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    outcomes = together(8, lambda index: keep_file(sha, lambda: [b"he", b"llo"]))
    assert {(kept.sha256, kept.size) for kept in outcomes} == {(sha, 5)}
    assert Counter(kept.created for kept in outcomes)[True] == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [sha]


def test_first_writes_of_the_settings_at_once_all_succeed():
    """E-264: the row is made by one of them, the last commit stands."""
    outcomes = together(8, lambda index: sandbox.put_sandbox({"limits": {"environments": index}}, actor="a"))
    assert [outcome["config"]["limits"]["environments"] for outcome in outcomes] == list(range(8))
    assert sandbox.show_sandbox()["config"]["limits"]["environments"] in range(8)
