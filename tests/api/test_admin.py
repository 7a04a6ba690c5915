"""The operators' admin: what it shows, and that its buttons are the services of the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from environments.compute.fake import FakeDriver
from environments.models import Environment
from nylorun.record import outbox
from nylorun.record.models import OutboxMessage
from tests.support.client import Api

ENVIRONMENTS = "/admin/environments/environment/"
OUTBOX = "/admin/record/outboxmessage/"


@pytest.fixture
def operator(db: Any) -> Client:
    """A signed-in superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("op", password="x"))
    return client


def act(client: Client, url: str, action: str, key: str) -> str:
    """Press an action's button for one row; the page that follows."""
    answer = client.post(url, {"action": action, "_selected_action": [key]}, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize(
    "url", ["/admin/", ENVIRONMENTS, "/admin/environments/operation/", "/admin/environments/effect/",
            "/admin/record/event/", OUTBOX, "/admin/manifests/manifest/"],
)  # fmt: skip
def test_every_list_is_shown(operator: Client, api: Api, pods: FakeDriver, url: str) -> None:
    """E-271: read-only lists."""
    api.put("/v1/environments/demo", {"kind": "pod"})
    assert operator.get(url).status_code == 200


def test_an_environment_is_shown_with_its_last_events_and_without_a_save_button(
    operator: Client, api: Api, pods: FakeDriver
) -> None:
    """E-271: rows are not edited."""
    api.put("/v1/environments/demo", {"kind": "pod"})
    page = operator.get(f"{ENVIRONMENTS}demo/change/").content.decode()
    assert "environment.created" in page
    assert 'name="_save"' not in page
    assert operator.post(f"{ENVIRONMENTS}demo/change/", {"labels": "{}"}).status_code == 403
    assert operator.get(f"{ENVIRONMENTS}add/").status_code == 403


def test_actions_call_the_services(operator: Client, api: Api, pods: FakeDriver) -> None:
    """E-271: stop, reset, delete, try again; a refusal is shown in the API's words."""
    api.put("/v1/environments/demo", {"kind": "pod"})
    act(operator, ENVIRONMENTS, "stop", "demo")
    assert Environment.objects.get().desired == "suspended"
    act(operator, ENVIRONMENTS, "reset", "demo")
    assert Environment.objects.get().volume_gen == 1
    refused = act(operator, ENVIRONMENTS, "reset", "demo")
    assert "An earlier disk of Environment demo is still being removed." in refused
    act(operator, ENVIRONMENTS, "look_again", "demo")
    act(operator, ENVIRONMENTS, "delete_now", "demo")
    assert Environment.objects.get().desired == "deleted"
    api.put("/v1/environments/none", {"kind": "none"})
    act(operator, ENVIRONMENTS, "delete_with_force", "none")
    assert not Environment.objects.filter(pk="none").exists()


def test_parked_rows_are_sent_again(operator: Client, api: Api, pods: FakeDriver) -> None:
    """E-271, E-114: parked rows first, with a retry."""
    api.put("/v1/environments/demo", {"kind": "pod"})
    for _ in range(outbox.PARK):
        outbox.failed("reconcile:demo", "broken")
    assert "broken" in operator.get(OUTBOX).content.decode()
    row = OutboxMessage.objects.get()
    act(operator, OUTBOX, "retry_now", str(row.pk))
    assert OutboxMessage.objects.get().parked_at is None


def test_who_may_only_look_has_no_actions(api: Api, pods: FakeDriver) -> None:
    """E-271: viewing is not acting."""
    api.put("/v1/environments/demo", {"kind": "pod"})
    user = User.objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_environment"))
    client = Client()
    client.force_login(user)
    assert client.get(ENVIRONMENTS).status_code == 200
    act(client, ENVIRONMENTS, "delete_with_force", "demo")
    assert Environment.objects.get().desired == "running"


def test_strangers_see_the_login_page_only(api: Api) -> None:
    """E-271: no page without a sign-in."""
    answer = Client().get(ENVIRONMENTS)
    assert (answer.status_code, "/admin/login/" in answer.headers["Location"]) == (302, True)
