"""The Tenant's sandbox settings over HTTP."""

import pytest

from nylorun.tenant.models import TenantSetting
from tests.support.client import Api

pytestmark = pytest.mark.django_db

ROUTE = "/v1/tenant/sandbox"


def test_document_and_what_is_in_force(api):
    """E-264: the example of the interface, member by member."""
    config = {"limits": {"idle": "10m", "environments": 20}, "harnesses": ["nylorun"]}
    answer = api.put(ROUTE, {**config, "requestId": "r-1"})
    assert answer.status == 200
    assert answer.json == {
        "config": config,
        "effective": {
            "limits": {
                "resources": {"cpus": 4, "memory": "8192MiB"},
                "defaultResources": {"cpus": 2, "memory": "1024MiB"},
                "idle": "10m",
                "environments": 20,
            },
            "lifecycle": {"stopGrace": "10s"},
            "default": {"image": "python:3.13-slim"},
            "placement": {"*": {"hosts": ["harness-container", "sandbox"]}},
            "harnesses": ["nylorun"],
        },
    }
    assert api.get(ROUTE).json == answer.json
    row = TenantSetting.objects.get(name="sandbox.config")
    assert (row.value, row.updated_by) == (config, "app-1")


def test_an_empty_put_is_every_default(api):
    """E-264: the whole document is replaced."""
    api.put(ROUTE, {"limits": {"environments": 3}})
    assert api.put(ROUTE, {}).json["config"] == {}
    assert api.get(ROUTE).json["effective"]["limits"]["environments"] == 1000


def test_every_problem_is_told(api):
    """E-264, E-51: strict, with pointers; nothing is written."""
    answer = api.put(ROUTE, {"limits": {"idle": "0s", "network": ["a"], "environments": None}, "x": 1})
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert [problem["path"] for problem in answer.json["details"]["problems"]] == [
        "/limits/network/0",
        "/limits/idle",
        "/limits/environments",
        "/x",
    ]
    beyond = api.put(ROUTE, {"limits": {"resources": {"cpus": 1}}})
    assert beyond.json["details"]["problems"][0]["path"] == "/limits/defaultResources/cpus"
    assert not TenantSetting.objects.filter(name="sandbox.config").exists()


def test_settings_count_from_the_next_request(api):
    """E-264: nothing is cached; saved Manifests are not touched."""
    body = {"kind": "pod", "network": {"allow": ["a.org"]}, "harness": "codex"}
    assert api.put("/v1/environment-manifests/box", body).status == 400
    api.put(ROUTE, {"harnesses": ["codex"]})
    assert api.put("/v1/environment-manifests/box", body).status == 201
    api.put(ROUTE, {"harnesses": ["codex"], "limits": {"network": ["b.org"]}})
    refused = api.put("/v1/environment-manifests/box", {**body, "setup": ["x"]})
    assert refused.json["details"]["problems"] == ["network.allow: a.org is outside the Tenant's limits.network."]
    assert api.get("/v1/environment-manifests/box").json["manifest"] == body


def test_who_may_change_settings(api):
    """E-264: an application, or a person with the scope; others learn nothing."""
    assert api.as_subject("ada", "tenant:settings").put(ROUTE, {}).status == 200
    for person in (api.as_subject("ada", "environments:write"), api.as_subject("ada", "sessions:own")):
        assert (person.get(ROUTE).status, person.put(ROUTE, {}).status) == (403, 403)
    assert Api().get(ROUTE).status == 404
    assert api.delete(ROUTE).headers["Allow"] == "GET, HEAD, PUT"
