"""Remove, and finding versions by reference."""

import pytest

from environments.models import Environment
from manifests.errors import ManifestInUse, ManifestNotFound
from manifests.models import Manifest, ManifestVersion
from manifests.queries import environments_by_name, environments_of, version_for, versions_of
from manifests.references import Reference
from manifests.services.remove import remove_manifest
from manifests.services.save import save_manifest
from nylorun.db.tx import database_now
from nylorun.kernel.errors import InvalidRequest

pytestmark = pytest.mark.django_db


def made_from(version, id, **columns):
    """An Environment row of this version."""
    now = database_now()
    return Environment.objects.create(
        id=id,
        kind=columns.pop("kind", "none"),
        recipe={},
        applied={},
        manifest=version,
        manifest_name=version.manifest_id,
        manifest_version_number=version.number,
        manifest_hash="",
        last_used_at=now,
        created_at=now,
        updated_at=now,
        **columns,
    )


def saved(name, versions=1):
    """A Manifest with so many versions; the last one."""
    for number in range(versions):
        version = save_manifest(name, {"kind": "pod", "setup": [str(number)]}, actor="a").version
    return version


BEING_DELETED = {
    "kind": "pod", "desired": "deleted", "observed": "deleting", "rev": 1, "host_epoch": 0, "volume_gen": 0,
    "k8s_name": "sbx-aaaaaaaaaaaaaaaa-g0", "driver": "fake",
}  # fmt: skip


def test_delete_removes_all_versions_and_counts_them():
    """E-41: the whole name goes; others stay."""
    saved("box", 3)
    saved("other")
    assert remove_manifest("box") == 3
    assert list(Manifest.objects.values_list("name", flat=True)) == ["other"]
    assert [version.manifest_id for version in ManifestVersion.objects.all()] == ["other"]
    assert remove_manifest("box") == 0


def test_a_name_saved_again_starts_at_1():
    """E-41: nothing of the earlier one is left."""
    saved("box", 3)
    remove_manifest("box")
    assert saved("box").number == 1


def test_a_used_manifest_stays():
    """E-46, E-42: an older version in use holds the whole name; rows being deleted count."""
    saved("box", 2)
    made_from(version_for("box@1"), "one")
    made_from(version_for("box@2"), "two", **BEING_DELETED)
    with pytest.raises(ManifestInUse, match="2 Environments were made from it") as caught:
        remove_manifest("box")
    assert caught.value.details == {"environments": 2}
    assert ManifestVersion.objects.count() == 2
    Environment.objects.filter(pk="one").delete()
    with pytest.raises(ManifestInUse, match="1 Environment was"):
        remove_manifest("box")
    Environment.objects.all().delete()
    assert remove_manifest("box") == 2


def test_environments_are_counted_by_version_and_by_name():
    """E-42: each version its own, a name all of them, an unused name none."""
    saved("box", 2)
    saved("other")
    for id in ("a", "b"):
        made_from(version_for("box@1"), id)
    made_from(version_for("box"), "c", **BEING_DELETED)
    assert [(row.number, row.used) for row in versions_of("box")] == [(2, 1), (1, 2)]
    assert environments_of("box") == 3
    assert environments_of("other") == environments_of("unknown") == 0
    assert environments_by_name(["box", "other", "unknown"]) == {"box": 3, "other": 0}


def test_a_reference_means_the_latest_or_its_version():
    """E-41: a bare name is whatever is latest now."""
    saved("box", 2)
    assert version_for("box").number == version_for("box@2").number == version_for(Reference("box", 2)).number == 2
    assert version_for("box@1").number == 1
    saved("box", 3)
    assert version_for("box").number == 5


def test_what_is_not_there_is_told_in_two_ways():
    """E-41: an unknown name with the route that saves it, an unknown version with its number."""
    saved("box")
    with pytest.raises(ManifestNotFound, match="PUT /v1/environment-manifests/other") as unknown:
        version_for("other@1")
    with pytest.raises(ManifestNotFound, match="has no version 2") as version:
        version_for("box@2")
    assert unknown.value.details == {"name": "other"}
    assert version.value.details == {"name": "box", "version": 2}
    with pytest.raises(InvalidRequest, match="/manifest"):
        version_for("Box")
