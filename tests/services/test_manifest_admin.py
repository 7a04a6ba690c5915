"""The library in the admin: to look at, with one action that asks the service."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from manifests.models import DefinitionFile, Manifest
from manifests.queries import version_for
from manifests.services.save import save_manifest
from nylorun.db.tx import database_now
from tests.services.test_manifest_remove import made_from

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff():
    """A signed-in operator."""
    client = Client()
    client.force_login(User.objects.create_superuser("op", password="op-password"))
    return client


def test_names_are_listed_with_their_latest_version_and_use(staff):
    """E-42: counts over all versions."""
    for setup in ("a", "b", "c"):
        save_manifest("box", {"kind": "pod", "setup": [setup]}, actor="a")
    for index in range(5):
        made_from(version_for(f"box@{1 + index % 2}"), f"env-{index}")
    page = staff.get("/admin/manifests/manifest/")
    assert page.status_code == 200
    assert '<td class="field-latest">3</td><td class="field-environments">5</td>' in page.text


def test_versions_are_shown_and_nothing_can_be_changed(staff):
    """E-39: a version never changes, not from here either."""
    save_manifest("box", {"kind": "pod", "setup": ["look at me"]}, actor="ada@example.org")
    DefinitionFile.objects.create(sha256="0" * 64, size=1, created_at=database_now())
    page = staff.get("/admin/manifests/manifest/box/change/")
    assert page.status_code == 200
    assert "look at me" in page.text
    assert "ada@example.org" in page.text
    assert 'name="_save"' not in page.text
    assert staff.get("/admin/manifests/manifest/add/").status_code == 403
    assert staff.post("/admin/manifests/manifest/box/delete/", {"post": "yes"}).status_code == 403
    assert staff.post("/admin/manifests/manifest/box/change/", {"name": "other"}).status_code == 403
    assert staff.get("/admin/manifests/definitionfile/").status_code == 200
    assert staff.get("/admin/manifests/definitionfile/add/").status_code == 403
    assert list(Manifest.objects.values_list("name", flat=True)) == ["box"]


def test_unused_manifests_are_deleted_through_the_service(staff):
    """E-46: a used one stays and the page says why."""
    for name in ("used", "unused", "kept"):
        save_manifest(name, {"kind": "none"}, actor="a")
    made_from(version_for("used"), "demo")
    chosen = {"action": "delete_unused", "_selected_action": ["used", "unused"]}
    page = staff.post("/admin/manifests/manifest/", chosen, follow=True)
    assert "Manifest used is in use: 1 Environment was made from it." in page.text
    assert "Manifest unused is deleted: 1 versions." in page.text
    assert sorted(Manifest.objects.values_list("name", flat=True)) == ["kept", "used"]


def test_who_may_look_may_not_delete(staff):
    """E-46: the action needs its own permission."""
    save_manifest("box", {"kind": "none"}, actor="a")
    client = Client()
    viewer = User.objects.create_user("viewer", is_staff=True)
    client.force_login(viewer)
    assert client.get("/admin/manifests/manifest/").status_code == 403
    client.post("/admin/manifests/manifest/", {"action": "delete_unused", "_selected_action": ["box"]})
    assert Manifest.objects.exists()
