"""Resolution: the rules of a body under the Tenant's settings, and the Recipe that comes of it."""

import pytest

from manifests.recipe import RecipeProblems, inline_overlay, problems_of, resolve
from manifests.schema import parse
from manifests.settings import in_force
from nylorun.kernel.canonical import canonical_hash

DEFAULTS = in_force(None)
VARIABLE = {"type": "environment_variable"}
RESOURCES = {"cpus": 2, "memory": "1024MiB"}
EMPTY = {"harness": "nylorun", "lifecycle": {}}
HASHED = {"path": "a", "files": {"x": "sha256:" + "0" * 64}}


def limits(**members):
    """Settings in force with these limits."""
    return in_force({"limits": members})


def body(document):
    """A request in its normal form."""
    members, problems = parse(document)
    assert problems == []
    return members


def refused(kind, document, effective=DEFAULTS):
    """The problems of a request."""
    with pytest.raises(RecipeProblems) as caught:
        resolve(kind, body(document), effective)
    assert str(caught.value) == " ".join(caught.value.problems)
    return caught.value.problems


@pytest.mark.parametrize("kind", ["pod", "virtual"])
def test_harness_lifecycle_and_both_resources_are_always_there(kind):
    """E-48, E-51, E-52, E-53: image and storage keep their defaults for the start; no network is no member."""
    recipe = resolve(kind, {}, DEFAULTS)
    assert recipe == {**EMPTY, "resources": RESOURCES}
    assert canonical_hash(recipe) == "sha256:55084428bdba1336be63ad26cf565f1d8d303965bc7977aa47b519a4ddc8b8bb"


def test_kind_none_has_no_resources():
    """E-48: no sandbox, no machine."""
    assert resolve("none", {}, DEFAULTS) == EMPTY


def test_what_was_sent_is_in_the_recipe():
    """E-48: every field of a pod that applies, nothing else."""
    full = {
        "image": "python:3.12",
        "resources": {"cpus": 4},
        "storage": "7GiB",
        "network": {"allow": ["a.org", "*.b.org"]},
        "lifecycle": {"idle": "10m", "deleteAfter": "9d", "onLost": "restore", "snapshot": "suspend", "keep": 3},
        "setup": ["a"],
        "files": [HASHED],
        "secrets": {"V": VARIABLE},
    }
    assert resolve("pod", body(full), DEFAULTS) == {
        **body(full),
        "harness": "nylorun",
        "resources": {"cpus": 4, "memory": "1024MiB"},
    }


@pytest.mark.parametrize(
    "sent",
    [
        {"harness": "nylorun"},
        {"lifecycle": {"onLost": "refuse", "snapshot": "never"}},
        {"resources": {}},
        {"resources": {"cpus": 2}},
        {"resources": {"memory": "1GiB"}},
        {"network": {}},
    ],
)
def test_sending_a_default_and_leaving_it_out_give_the_same_recipe(sent):
    """E-48: members equal to a fixed default are left out."""
    assert resolve("pod", body(sent), DEFAULTS) == resolve("pod", {}, DEFAULTS)


def test_an_empty_list_of_hosts_is_not_an_absent_network():
    """E-48: it was said that nothing is allowed, and that is kept."""
    assert resolve("pod", {"network": {"allow": []}}, DEFAULTS)["network"] == {"allow": []}


def test_durations_are_kept_as_they_were_sent():
    """E-49: ``60m`` and ``1h`` are different Recipes."""
    hour = limits(idle="2h")
    one, other = ({"lifecycle": {"idle": text}} for text in ("60m", "1h"))
    assert resolve("pod", one, hour) != resolve("pod", other, hour)


@pytest.mark.parametrize(
    ("field", "value", "kinds"),
    [
        ("image", "x", {"pod"}),
        ("storage", "1GiB", {"pod"}),
        ("setup", ["x"], {"pod"}),
        ("resources", {"cpus": 1}, {"pod", "virtual"}),
        ("network", {"allow": ["a.org"]}, {"pod", "virtual"}),
        ("files", [HASHED], {"pod", "virtual"}),
        ("secrets", {"A": VARIABLE}, {"pod", "virtual", "none"}),
    ],
)
def test_a_field_of_another_kind_is_a_problem(field, value, kinds):
    """E-52, E-53: each field has its kinds."""
    for kind in ("pod", "virtual", "none"):
        found = [problem.field for problem in problems_of(kind, {field: value}, DEFAULTS)]
        assert found == ([] if kind in kinds else [(field,)])


@pytest.mark.parametrize(
    ("member", "value", "kinds"),
    [
        ("idle", "1m", {"pod"}),
        ("onLost", "restore", {"pod"}),
        ("onLost", "refuse", {"pod"}),
        ("snapshot", "never", {"pod"}),
        ("keep", 1, {"pod", "virtual"}),
        ("deleteAfter", "1m", {"pod", "virtual", "none"}),
    ],
)
def test_a_lifecycle_member_of_another_kind_is_a_problem(member, value, kinds):
    """E-48: each lifecycle member has its kinds, its default too."""
    for kind in ("pod", "virtual", "none"):
        found = [problem.field for problem in problems_of(kind, {"lifecycle": {member: value}}, DEFAULTS)]
        assert found == ([] if kind in kinds else [("lifecycle", member)])


def test_a_pattern_is_for_pods_only():
    """E-50: a virtual workspace names exact hosts."""
    request = {"network": {"allow": ["*.a.org", "b.org"]}}
    assert resolve("pod", request, DEFAULTS)["network"] == request["network"]
    assert refused("virtual", request) == ["network.allow: *.a.org is a pattern, kind virtual takes exact hosts."]


def test_a_harness_is_registered_and_another_one_is_for_pods():
    """E-263: an unknown id is told the known ones."""
    registry = in_force({"harnesses": ["codex"]})
    assert resolve("pod", {"harness": "codex"}, registry)["harness"] == "codex"
    assert refused("pod", {"harness": "x"}, registry) == ["harness: x is not registered, known are nylorun, codex."]
    assert refused("virtual", {"harness": "codex"}, registry) == ["harness: kind virtual takes nylorun only."]
    assert refused("pod", {"harness": "codex"}) == ["harness: codex is not registered, known are nylorun."]


@pytest.mark.parametrize(
    ("ceiling", "hosts", "outside"),
    [
        (None, ["a.org", "*.org.x"], []),
        ([], ["a.org"], ["a.org"]),
        (["a.org"], ["a.org", "b.org"], ["b.org"]),
        (["*.a.org"], ["*.a.org", "a.org", "x.a.org", "*.x.a.org"], ["a.org"]),
    ],
)
def test_every_host_is_inside_the_ceiling(ceiling, hosts, outside):
    """E-50: no ceiling limits nothing, an empty one allows nothing."""
    effective = DEFAULTS if ceiling is None else limits(network=ceiling)
    found = [str(problem) for problem in problems_of("pod", {"network": {"allow": hosts}}, effective)]
    assert found == [f"network.allow: {host} is outside the Tenant's limits.network." for host in outside]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"cpus": 4, "memory": "8192MiB"}, []),
        ({"cpus": 5}, ["resources.cpus: 5 is more than the limit 4."]),
        ({"memory": "8193MiB"}, ["resources.memory: 8193MiB is more than the limit 8192MiB."]),
    ],
)
def test_resources_are_at_most_the_limits(resources, expected):
    """E-51: on the limit is inside."""
    assert [str(problem) for problem in problems_of("virtual", {"resources": resources}, DEFAULTS)] == expected


@pytest.mark.parametrize(
    ("member", "inside", "beyond", "text"),
    [("idle", "900s", "900001ms", "15m"), ("deleteAfter", "24h", "86400001ms", "1d")],
)
def test_times_are_at_most_the_limits(member, inside, beyond, text):
    """E-49: compared as times, not as texts; without a limit any time is fine."""
    effective = limits(deleteAfter="1d")
    assert problems_of("pod", {"lifecycle": {member: inside}}, effective) == []
    assert refused("pod", {"lifecycle": {member: beyond}}, effective) == [
        f"lifecycle.{member}: {beyond} is longer than the limit {text}."
    ]
    assert problems_of("pod", {"lifecycle": {"deleteAfter": "36500d"}}, DEFAULTS) == []


def test_slots_have_names_hosts_vias_and_no_clash():
    """E-48: what a Slot is bound to must be reachable, and no two stand in each other's place."""
    request = {
        "network": {"allow": ["*.a.org", "b.org"]},
        "secrets": {
            "PATH": VARIABLE,
            "a": {"type": "bearer", "url": "https://x.a.org"},
            "b": {"type": "environment_secret", "allowedHosts": ["a.org", "b.org", "x.a.org"]},
            "c": {"type": "headers", "url": "https://b.org", "via": "http://localhost:1"},
        },
    }
    assert refused("pod", request) == [
        "secrets.PATH: PATH is a reserved variable.",
        "secrets.b: a.org is not covered by network.allow.",
        "secrets.b: sets the same header on the same host as a.",
        "secrets.c: http://localhost:1 is none of the Tenant's limits.via.",
    ]
    del request["secrets"]["PATH"], request["secrets"]["b"]
    assert resolve("pod", body(request), limits(via=["http://localhost:1"]))["secrets"].keys() == {"a", "c"}


def test_all_problems_are_told_together_in_the_order_of_the_rules():
    """E-47: one answer, every problem, each ``<field>: <text>.``"""
    request = {
        "image": "x",
        "lifecycle": {"idle": "1d"},
        "harness": "x",
        "network": {"allow": ["*.a.org"]},
        "resources": {"cpus": 64},
        "secrets": {"A": {"type": "bearer", "url": "https://b.org"}},
    }
    assert refused("virtual", request, limits(network=[])) == [
        "image: kind virtual does not take it, only pod.",
        "lifecycle.idle: kind virtual does not take it, only pod.",
        "network.allow: *.a.org is a pattern, kind virtual takes exact hosts.",
        "harness: x is not registered, known are nylorun.",
        "network.allow: *.a.org is outside the Tenant's limits.network.",
        "resources.cpus: 64 is more than the limit 4.",
        "lifecycle.idle: 1d is longer than the limit 15m.",
        "secrets.A: b.org is not covered by network.allow.",
    ]


def test_a_problem_has_a_place_in_the_body():
    """E-47: the same problem as a pointer, for answers that also have problems of the shape."""
    (problem,) = problems_of("pod", {"secrets": {"PATH": VARIABLE}}, DEFAULTS)
    assert problem.pointed() == {"path": "/secrets/PATH", "message": "PATH is a reserved variable"}


def test_inline_fields_are_laid_over_the_recipe_and_storage_stays():
    """E-53: an existing row keeps its storage whatever is sent, also none."""
    recipe = {**EMPTY, "resources": RESOURCES, "storage": "7GiB", "setup": ["a"]}
    sent = {"kind": "pod", "storage": "9GiB", "setup": ["b"], "resources": {"cpus": 1}}
    assert inline_overlay(recipe, sent) == {**EMPTY, "resources": {"cpus": 1}, "storage": "7GiB", "setup": ["b"]}
    assert "storage" not in inline_overlay({**EMPTY, "resources": RESOURCES}, sent)
    assert resolve("pod", inline_overlay(recipe, {}), DEFAULTS) == recipe
