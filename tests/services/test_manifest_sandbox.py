"""The sandbox settings: one document, replaced as a whole."""

from datetime import timedelta

import pytest

from manifests.queries import effective_settings
from manifests.services import sandbox
from manifests.services.sandbox import put_sandbox, show_sandbox
from nylorun.kernel.errors import InvalidRequest
from nylorun.tenant.models import TenantSetting

pytestmark = pytest.mark.django_db


def test_never_written_settings_are_the_defaults():
    """E-264: an empty document, every default in force."""
    shown = show_sandbox()
    assert shown["config"] == {}
    assert shown["effective"]["limits"]["environments"] == 1000


def test_a_put_replaces_the_document():
    """E-264: members that are not sent go back to their defaults."""
    put_sandbox({"limits": {"environments": 20, "idle": "10m"}}, actor="a")
    shown = put_sandbox({"limits": {"idle": "5m"}}, actor="ada@example.org")
    assert shown == show_sandbox()
    assert shown["config"] == {"limits": {"idle": "5m"}}
    row = TenantSetting.objects.get(name="sandbox.config")
    assert (row.value, row.updated_by) == ({"limits": {"idle": "5m"}}, "ada@example.org")
    assert effective_settings().idle == timedelta(minutes=5)
    assert effective_settings().environments == 1000


def test_a_wrong_document_changes_nothing_and_tells_every_problem():
    """E-264: strict, all at once."""
    put_sandbox({"limits": {"environments": 20}}, actor="a")
    with pytest.raises(InvalidRequest) as caught:
        put_sandbox({"limits": {"environments": -1, "idle": "0s"}, "x": 1}, actor="a")
    assert [problem["path"] for problem in caught.value.problems] == ["/limits/idle", "/limits/environments", "/x"]
    assert show_sandbox()["config"] == {"limits": {"environments": 20}}


def test_what_follows_a_change_runs_after_the_commit(monkeypatch):
    """E-264: once for each change that was written, when it can be read."""
    seen = []
    monkeypatch.setattr(sandbox, "AFTER_CHANGE", [lambda: seen.append(effective_settings().environments)])
    put_sandbox({"limits": {"environments": 7}}, actor="a")
    with pytest.raises(InvalidRequest):
        put_sandbox({"limits": None}, actor="a")
    assert seen == [7]
