"""Deleting with force: gone for every caller at once, in every state, with nothing else up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from environments.compute.fake import FakeDriver
from environments.models import Environment
from environments.models.environment import DESIRED, OBSERVED
from nylorun.db.tx import database_now
from nylorun.kernel.clock import iso
from nylorun.record.models import Event, OutboxMessage
from tests.support.client import Api
from vault.models import Vault
from workers.steps import pods as step

URL = "/v1/environments/demo"


@pytest.mark.parametrize("desired", [word for word in DESIRED if word != "deleted"])
@pytest.mark.parametrize("observed", OBSERVED)
@pytest.mark.parametrize("lease", [None, "snapshot", "restore", "seed"])
def test_force_deletes_in_every_state(
    api: Api, pods: FakeDriver, desired: str, observed: str, lease: str | None
) -> None:
    """E-275, E-37: no worker, Driver or broker is asked; the Vault goes at once; retiring is no obstacle."""
    api.put(URL, {"kind": "pod"})
    held = None
    if lease is not None:
        until = iso(database_now() + timedelta(minutes=2))
        held = {"kind": lease, "operationId": "op_x", "attempt": 1, "startedAt": until, "until": until}
    Environment.objects.filter(pk="demo").update(
        desired=desired, observed=observed, disk_op=held, retiring="sbx-old-g0"
    )
    pods.silent = True
    if lease in ("snapshot", "restore"):
        refused = api.delete(URL)
        assert (refused.status, refused.headers["Retry-After"]) == (409, "5")
    assert api.delete(f"{URL}?force=true").json == {"id": "demo", "deleted": True}
    assert api.get(URL).status == 404
    assert api.get("/v1/environments").json["environments"] == []
    assert Vault.objects.count() == 0
    assert Event.objects.order_by("-seq").first().type == "deleted"
    assert api.delete(f"{URL}?force=true").json["deleted"] is False
    pods.silent = False
    step.reconcile_pod("demo")
    assert not Environment.objects.exists()


@pytest.mark.parametrize("kind", ["virtual", "none"])
def test_a_row_without_a_machine_goes_with_its_vault_in_one_commit(api: Api, kind: str) -> None:
    """E-01, E-275: the workspace is promised by the row's uid, so a row made again never meets it."""
    api.put(URL, {"kind": kind})
    uid = Environment.objects.get(pk="demo").uid
    assert Vault.objects.get().environment_uid == uid
    api.delete(f"{URL}?force=true")
    assert (Environment.objects.count(), Vault.objects.count()) == (0, 0)
    promised = list(OutboxMessage.objects.values_list("payload", flat=True))
    assert promised == ([{"uid": str(uid)}] if kind == "virtual" else [])
    assert api.put(URL, {"kind": kind}).status == 201
    assert Environment.objects.get(pk="demo").uid != uid


@pytest.mark.parametrize(
    ("value", "status"), [("true", 200), ("1", 200), ("false", 200), ("0", 200), ("yes", 400), ("", 400)]
)
def test_force_is_a_strict_boolean(api: Api, value: str, status: int) -> None:
    """Pain 24: words that only look like a boolean are refused."""
    api.put(URL, {"kind": "none"})
    assert api.delete(f"{URL}?force={value}").status == status


def test_slots_are_shown_sorted(api: Api) -> None:
    """E-26: name, type, required, set; never a value."""
    api.put(URL, {"kind": "virtual", "secrets": {"B": {"type": "environment_variable", "required": True},
                                                 "A": {"type": "environment_variable"}}})  # fmt: skip
    expected = [
        {"name": "A", "type": "environment_variable", "required": False, "set": False},
        {"name": "B", "type": "environment_variable", "required": True, "set": False},
    ]
    assert api.get(URL).json["slots"] == expected
    none: dict[str, Any] = api.put("/v1/environments/other", {"kind": "none"}).json
    assert "slots" not in none
