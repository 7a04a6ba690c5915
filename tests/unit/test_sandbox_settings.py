"""The Tenant's sandbox settings: shape, defaults, and what is in force."""

from datetime import timedelta

import pytest

from manifests.settings import in_force, parse
from nylorun.kernel.durations import GIB

DEFAULTS = {
    "limits": {
        "resources": {"cpus": 4, "memory": "8192MiB"},
        "defaultResources": {"cpus": 2, "memory": "1024MiB"},
        "idle": "15m",
        "environments": 1000,
    },
    "lifecycle": {"stopGrace": "10s"},
    "default": {"image": "python:3.13-slim"},
    "placement": {"*": {"hosts": ["harness-container", "sandbox"]}},
    "harnesses": ["nylorun"],
}


def paths(document):
    """Where the problems are."""
    return [problem["path"] for problem in parse(document)[1]]


def test_without_a_document_every_default_is_in_force():
    """E-264: the defaults, and no ceiling where none is set."""
    effective = in_force(None)
    assert effective.document == DEFAULTS
    assert effective.network is None
    assert effective.via == ()
    assert effective.delete_after is None
    assert effective.disk_bytes == 64 * GIB
    assert (effective.cpus, effective.memory_mib, effective.environments) == (4, 8192, 1000)
    assert effective.idle == timedelta(minutes=15)
    assert effective.stop_grace == timedelta(seconds=10)
    assert in_force({}) == effective


def test_what_is_written_is_in_force_and_the_rest_keeps_its_default():
    """E-264: member by member, in the normal form."""
    config, problems = parse(
        {
            "limits": {
                "network": ["B.org", "*.a.org"],
                "via": ["http://LOCALHOST:1"],
                "resources": {"cpus": 8},
                "defaultResources": {"memory": "2GiB"},
                "deleteAfter": "9d",
                "environments": 0,
                "diskBytes": "1GiB",
            },
            "lifecycle": {"stopGrace": "30s"},
            "default": {"image": "x"},
            "placement": {"codex": {"hosts": ["sandbox", "sandbox"]}},
            "harnesses": ["codex", "codex"],
            "requestId": "r-1",
        }
    )
    assert problems == []
    assert config["limits"]["network"] == ["*.a.org", "b.org"]
    assert config["harnesses"] == ["codex"]
    assert "requestId" not in config
    effective = in_force(config)
    assert effective.network == ("*.a.org", "b.org")
    assert effective.via == ("http://localhost:1",)
    assert (effective.cpus, effective.memory_mib) == (8, 8192)
    assert (effective.default_cpus, effective.default_memory) == (2, "2048MiB")
    assert effective.delete_after == timedelta(days=9)
    assert effective.environments == 0
    assert effective.disk_bytes == GIB
    assert effective.harnesses == ("nylorun", "codex")
    assert effective.hosts_of("codex") == ("sandbox",)
    assert effective.hosts_of("nylorun") == ("harness-container", "sandbox")
    assert in_force(parse(config)[0]) == effective


@pytest.mark.parametrize("name", ["limits", "lifecycle", "default", "placement", "harnesses"])
def test_absent_null_zero_and_false_are_different_cases_of_each_member(name):
    """E-264: absent means the default; anything that is no value of the member is refused."""
    assert parse({}) == ({}, [])
    for value in (None, 0, False, ""):
        assert paths({name: value}) == [f"/{name}"]


@pytest.mark.parametrize(
    "member", ["network", "via", "resources", "defaultResources", "idle", "deleteAfter", "environments", "diskBytes"]
)
def test_absent_null_and_false_are_different_cases_of_each_limit(member):
    """E-264: an absent ceiling limits nothing, ``null`` is no ceiling but a fault."""
    assert parse({"limits": {}}) == ({"limits": {}}, [])
    for value in (None, False, ""):
        assert paths({"limits": {member: value}}) == [f"/limits/{member}"]


def test_zero_and_empty_are_values():
    """E-264: 0 Environments are 0, an empty ceiling allows no host, an empty list of vias allows none."""
    effective = in_force(parse({"limits": {"environments": 0, "network": [], "via": []}})[0])
    assert (effective.environments, effective.network, effective.via) == (0, (), ())


@pytest.mark.parametrize("member", ["idle", "deleteAfter"])
@pytest.mark.parametrize("text", ["0s", "0d", "-1m", "0ms"])
def test_a_limit_of_no_time_is_refused(member, text):
    """E-49: no duration is 0 or below."""
    assert paths({"limits": {member: text}}) == [f"/limits/{member}"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"lifecycle": {"stopGrace": "1s"}}, []),
        ({"lifecycle": {"stopGrace": "30000ms"}}, []),
        ({"lifecycle": {"stopGrace": "999ms"}}, ["/lifecycle/stopGrace"]),
        ({"lifecycle": {"stopGrace": "30001ms"}}, ["/lifecycle/stopGrace"]),
        ({"lifecycle": {"stopGrace": "0s"}}, ["/lifecycle/stopGrace"]),
        ({"limits": {"environments": 1_000_000}}, []),
        ({"limits": {"environments": 1_000_001}}, ["/limits/environments"]),
        ({"limits": {"environments": -1}}, ["/limits/environments"]),
        ({"limits": {"resources": {"cpus": 65}}}, ["/limits/resources/cpus"]),
        ({"limits": {"via": ["http://a.org"]}}, ["/limits/via/0"]),
        ({"limits": {"network": ["a"]}}, ["/limits/network/0"]),
        ({"placement": {"*": {"hosts": []}}}, ["/placement/*/hosts"]),
        ({"placement": {"*": {"hosts": ["moon"]}}}, ["/placement/*/hosts/0"]),
        ({"placement": {"A": {"hosts": ["sandbox"]}}}, ["/placement/A"]),
        ({"harnesses": ["A"]}, ["/harnesses/0"]),
        ({"harnesses": []}, []),
        ({"other": 1}, ["/other"]),
        ({"limits": {"cpu": 1}}, ["/limits/cpu"]),
    ],
)
def test_bounds_of_the_document(document, expected):
    """E-264: strict, with every bound."""
    assert paths(document) == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"resources": {"cpus": 2, "memory": "1GiB"}}, []),
        ({"resources": {"cpus": 1}}, ["/limits/defaultResources/cpus"]),
        ({"defaultResources": {"cpus": 4}}, []),
        ({"defaultResources": {"cpus": 5}}, ["/limits/defaultResources/cpus"]),
        ({"defaultResources": {"memory": "8GiB"}}, []),
        ({"defaultResources": {"memory": "8193MiB"}}, ["/limits/defaultResources/memory"]),
        ({"resources": {"cpus": 1}, "defaultResources": {"cpus": 1}}, []),
    ],
)
def test_defaults_lie_within_the_limits(limits, expected):
    """E-51: otherwise every Manifest that says nothing would be refused."""
    config, problems = parse({"limits": limits})
    assert [problem["path"] for problem in problems] == expected
    assert config == ({} if expected else {"limits": parse({"limits": limits})[0]["limits"]})


def test_placement_of_one_harness_leaves_the_others_their_default():
    """E-263: the harness's own entry, else that of ``*``."""
    effective = in_force({"placement": {"*": {"hosts": ["sandbox"]}, "codex": {"hosts": ["harness-container"]}}})
    assert effective.hosts_of("codex") == ("harness-container",)
    assert effective.hosts_of("nylorun") == ("sandbox",)
