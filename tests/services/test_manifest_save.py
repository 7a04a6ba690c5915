"""Save: versions under the lock of their name, and dry runs."""

import pytest

from manifests.models import DefinitionFile, Manifest, ManifestVersion
from manifests.queries import effective_settings, version_for
from manifests.recipe import resolve
from manifests.services.sandbox import put_sandbox
from manifests.services.save import rehearse_save, save_manifest
from nylorun.db.tx import TransactionOpen, database_now, transact
from nylorun.kernel.canonical import canonical_hash
from nylorun.kernel.errors import InvalidRequest, RequestRejected

pytestmark = pytest.mark.django_db

HASH = "sha256:" + "1b" * 32
ARTIFACT = "af_01hzy3v7k2m4n6p8q0r1s2t3v4"


def rows():
    """Every version as ``(name, number, hash)``."""
    return list(ManifestVersion.objects.order_by("manifest_id", "number").values_list("manifest_id", "number", "hash"))


def test_a_first_save_makes_the_name_and_its_version_1():
    """E-39: name, number, body, hash, who and when."""
    saved = save_manifest("box", {"kind": "pod", "resources": {"memory": "2GiB"}}, actor="ada@example.org")
    body = {"kind": "pod", "resources": {"memory": "2048MiB"}}
    stored = ManifestVersion.objects.get()
    assert saved.created is True
    assert (stored.manifest_id, stored.number, stored.body) == ("box", 1, body)
    assert stored.hash == canonical_hash(body)
    assert stored.saved_by == "ada@example.org"
    assert (database_now() - stored.created_at).total_seconds() < 60


def test_another_body_is_the_next_version_and_the_first_stays():
    """E-39, E-40: numbers follow each other, an older version is never touched."""
    first = save_manifest("box", {"kind": "pod"}, actor="a").version
    second = save_manifest("box", {"kind": "pod", "setup": ["x"]}, actor="b").version
    third = save_manifest("box", {"kind": "pod"}, actor="c").version
    assert [version.number for version in (first, second, third)] == [1, 2, 3]
    assert first.hash == third.hash
    assert ManifestVersion.objects.get(number=1).saved_by == "a"


def test_the_body_of_the_latest_version_makes_none():
    """E-44: equal by hash, however it was written; the first writer stays its author."""
    first = save_manifest("box", {"kind": "pod", "resources": {"memory": "1GiB", "cpus": 2}}, actor="a")
    again = save_manifest("box", {"resources": {"cpus": 2, "memory": "1024MiB"}, "kind": "pod"}, actor="b")
    assert again.created is False
    assert again.version.pk == first.version.pk
    assert rows() == [("box", 1, first.version.hash)]


def test_names_are_counted_apart():
    """E-40: each name has its own numbers."""
    for name in ("a", "b", "a"):
        save_manifest(name, {"kind": "pod", "setup": [f"{len(rows())}"]}, actor="x")
    assert [(name, number) for name, number, _ in rows()] == [("a", 1), ("a", 2), ("b", 1)]


def test_one_refusal_tells_every_rule_that_is_broken_and_writes_nothing():
    """E-47, E-57: rules and files together, the name is not made either."""
    document = {
        "image": "x",
        "network": {"allow": ["*.a.org"]},
        "files": [{"path": "a", "files": {"b": HASH}}, {"path": "c", "artifactId": ARTIFACT, "version": 1}],
    }
    with pytest.raises(RequestRejected) as caught:
        save_manifest("box", document, actor="a")
    assert caught.value.details["problems"] == [
        "image: kind virtual does not take it, only pod.",
        "network.allow: *.a.org is a pattern, kind virtual takes exact hosts.",
        f"files.0: a/b needs {HASH}, which is not held: send it with PUT /v1/files/{HASH}.",
        f"files.1: there is no Tenant-wide artifact {ARTIFACT}.",
    ]
    assert caught.value.message == " ".join(caught.value.details["problems"])
    assert not Manifest.objects.exists()


def test_faults_of_the_shape_and_of_the_rules_are_told_together():
    """E-47: each at its place; a broken kind or network is not guessed at."""
    document = {
        "kind": "virtual",
        "image": "x",
        "resources": {"cpus": 0},
        "files": [{"path": "a", "files": {"b": HASH}}],
        "secrets": {"PATH": {"type": "environment_variable"}},
    }
    with pytest.raises(InvalidRequest) as caught:
        save_manifest("box", document, actor="a")
    assert [problem["path"] for problem in caught.value.problems] == [
        "/resources/cpus",
        "/image",
        "/secrets/PATH",
        "/files/0",
    ]
    for broken in ({"kind": "vm", "image": "x"}, {"network": {"allow": ["x"]}, "secrets": {"A": {
        "type": "bearer", "url": "https://a.org"}}}):  # fmt: skip
        with pytest.raises(InvalidRequest) as caught:
            save_manifest("box", broken, actor="a")
        assert len(caught.value.problems) == 1
    assert not Manifest.objects.exists()


def test_each_distinct_hash_that_is_not_held_is_told_once():
    """E-56, E-57: with its target path, the hash and the route that holds it."""
    held, missing = "sha256:" + "0" * 64, "sha256:" + "2" * 64
    DefinitionFile.objects.create(sha256="0" * 64, size=1, created_at=database_now())
    files = [
        {"path": "p", "files": {"a": held, "b": HASH, "c": HASH}},
        {"path": "q", "files": {"d": missing, "e": HASH}},
    ]
    with pytest.raises(RequestRejected) as caught:
        save_manifest("box", {"files": files}, actor="a")
    assert caught.value.details["problems"] == [
        f"files.0: p/b needs {HASH}, which is not held: send it with PUT /v1/files/{HASH}.",
        f"files.1: q/d needs {missing}, which is not held: send it with PUT /v1/files/{missing}.",
    ]
    assert save_manifest("box", {"files": [{"path": "p", "files": {"a": held}}]}, actor="a").created


def test_settings_are_read_each_time():
    """E-264: a limit counts from the next save on; saved versions stay."""
    save_manifest("box", {"kind": "pod", "resources": {"cpus": 4}}, actor="a")
    put_sandbox({"limits": {"resources": {"cpus": 2}}}, actor="a")
    with pytest.raises(RequestRejected, match=r"resources\.cpus: 4 is more than the limit 2"):
        save_manifest("box", {"kind": "pod", "resources": {"cpus": 4}}, actor="a")
    assert version_for("box").body["resources"] == {"cpus": 4}


def test_a_pod_may_be_saved_where_there_are_no_pods():
    """E-43: what can run here is decided when it is made."""
    assert save_manifest("box", {"kind": "pod", "storage": "9GiB"}, actor="a").created


def test_a_rehearsal_of_a_first_save_changes_every_field():
    """E-45: the number and hash a save would give, and nothing written."""
    rehearsed = rehearse_save("box", {"kind": "pod", "setup": ["x"]})
    assert (rehearsed.version, rehearsed.created) == (1, True)
    assert rehearsed.hash == canonical_hash({"kind": "pod", "setup": ["x"]})
    assert [change["field"] for change in rehearsed.changes] == ["harness", "lifecycle", "resources", "setup"]
    assert not Manifest.objects.exists()


def test_a_rehearsal_tells_the_changes_from_the_latest_recipe():
    """E-45: Recipes are compared, so saying a default changes nothing but the version."""
    save_manifest("box", {"kind": "pod", "setup": ["x"]}, actor="a")
    before = rows()
    rehearsed = rehearse_save("box", {"kind": "pod", "harness": "nylorun"})
    assert (rehearsed.version, rehearsed.created) == (2, True)
    assert rehearsed.changes == [{"field": "setup", "from": ["x"], "to": None}]
    same = rehearse_save("box", {"setup": ["x"], "kind": "pod"})
    assert (same.version, same.created, same.changes, same.hash) == (1, False, [], before[0][2])
    assert rows() == before


def test_a_rehearsal_runs_every_check():
    """E-45: what a save refuses, its dry run refuses."""
    with pytest.raises(RequestRejected, match=r"files\.0"):
        rehearse_save("box", {"files": [{"path": "p", "files": {"a": HASH}}]})
    with pytest.raises(InvalidRequest, match="/image"):
        rehearse_save("box", {"image": ""})


def test_a_rehearsal_does_not_stumble_over_a_latest_version_that_is_refused_now():
    """E-45: the latest version was saved under other settings."""
    save_manifest("box", {"kind": "pod", "resources": {"cpus": 4}}, actor="a")
    put_sandbox({"limits": {"resources": {"cpus": 2}}}, actor="a")
    rehearsed = rehearse_save("box", {"kind": "pod"})
    assert rehearsed.changes[0]["field"] == "resources"
    assert rehearsed.changes[0]["from"] == {"cpus": 4, "memory": "1024MiB"}


def test_a_version_resolves_into_the_recipe_an_environment_runs():
    """E-48: the body without its kind, under the settings of now."""
    version = save_manifest("box", {"kind": "pod", "setup": ["x"]}, actor="a").version
    recipe = resolve(version.body["kind"], version.body, effective_settings())
    assert recipe == {
        "harness": "nylorun",
        "lifecycle": {},
        "resources": {"cpus": 2, "memory": "1024MiB"},
        "setup": ["x"],
    }


def test_a_save_is_a_transaction_of_its_own():
    """E-40: it is durable when it returns, so it runs inside no other."""
    with pytest.raises(TransactionOpen):
        transact(lambda tx: save_manifest("box", {}, actor="a"))
