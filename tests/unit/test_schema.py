"""The shape of a Manifest body: every bound, every absence, every problem at its place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import schema
from manifests.recipe import composed, problems_of
from manifests.schema import parse
from manifests.settings import in_force

HASH = "sha256:" + "1b" * 32
ARTIFACT = "af_01hzy3v7k2m4n6p8q0r1s2t3v4"
BY_HASH = {"path": "skills/a", "files": {"SKILL.md": HASH}}
BY_ARTIFACT = {"path": "data", "artifactId": ARTIFACT, "version": 2}
VARIABLE = {"type": "environment_variable"}
NAMES = ("A", "type", "url", "allowedHosts", "path", "files", "cpus", "memory", "allow", "idle", "keep", "required")


def paths(document):
    """Where the problems are."""
    return [problem["path"] for problem in parse(document)[1]]


def test_the_body_of_the_example_is_kept_in_its_normal_form():
    """E-49, E-50: sizes in their units, hosts lower-cased, unique and sorted, defaults of Slots left out."""
    body, problems = parse(
        {
            "kind": "pod",
            "image": "python:3.13-slim",
            "resources": {"cpus": 2, "memory": "2GiB"},
            "storage": "10GiB",
            "network": {"allow": ["packages.Example.org", "*.example.net", "packages.example.org"]},
            "harness": "nylorun",
            "lifecycle": {"idle": " 60m ", "deleteAfter": "14d", "onLost": "refuse", "snapshot": "suspend", "keep": 5},
            "setup": ["pip install pandas"],
            "files": [BY_ARTIFACT, BY_HASH],
            "secrets": {"DB_URL": {**VARIABLE, "required": False, "description": ""}},
        }
    )
    assert problems == []
    assert body == {
        "kind": "pod",
        "image": "python:3.13-slim",
        "resources": {"cpus": 2, "memory": "2048MiB"},
        "storage": "10GiB",
        "network": {"allow": ["*.example.net", "packages.example.org"]},
        "harness": "nylorun",
        "lifecycle": {"idle": "60m", "deleteAfter": "14d", "onLost": "refuse", "snapshot": "suspend", "keep": 5},
        "setup": ["pip install pandas"],
        "files": [BY_ARTIFACT, BY_HASH],
        "secrets": {"DB_URL": {**VARIABLE, "description": ""}},
    }


@pytest.mark.parametrize("name", schema.FIELDS)
def test_absent_null_zero_false_and_empty_are_five_cases_of_each_field(name):
    """E-43: absent is absent; ``null``, 0 and false are wrong types of every field, never taken as absent."""
    assert parse({}) == ({}, [])
    for value in (None, 0, False):
        body, problems = parse({name: value})
        assert body == {}
        assert [problem["path"].split("/")[1] for problem in problems] == [name]
    body, problems = parse({name: ""})
    assert body == {}
    assert problems


@pytest.mark.parametrize(
    ("outer", "member"),
    [("resources", "cpus"), ("resources", "memory"), ("network", "allow"), ("lifecycle", "idle"),
     ("lifecycle", "deleteAfter"), ("lifecycle", "onLost"), ("lifecycle", "snapshot"), ("lifecycle", "keep")],
)  # fmt: skip
def test_absent_null_zero_false_and_empty_are_five_cases_of_each_inner_member(outer, member):
    """E-43: the same one level down; an empty object stays one."""
    assert parse({outer: {}}) == ({outer: {}}, [])
    for value in (None, 0, False, ""):
        assert paths({outer: {member: value}}) == [f"/{outer}/{member}"]


@pytest.mark.parametrize("member", ["required", "description"])
def test_absent_null_zero_and_value_are_different_in_a_slot(member):
    """E-43: ``required: false`` is the default and left out, an empty description is a description."""
    plain, _ = parse({"secrets": {"A": VARIABLE}})
    assert paths({"secrets": {"A": {**VARIABLE, member: None}}}) == [f"/secrets/A/{member}"]
    assert paths({"secrets": {"A": {**VARIABLE, member: 0}}}) == [f"/secrets/A/{member}"]
    value = {"required": True, "description": ""}[member]
    other, problems = parse({"secrets": {"A": {**VARIABLE, member: value}}})
    assert (other != plain, problems) == (True, [])


@pytest.mark.parametrize("text", ["0ms", "0s", "0m", "0h", "0d", "-1s", "-0s", "0", "", "1.5h"])
@pytest.mark.parametrize("member", ["idle", "deleteAfter"])
def test_a_duration_of_nothing_or_less_is_refused(member, text):
    """E-49: no duration member takes an amount of 0 or below."""
    assert paths({"lifecycle": {member: text}}) == [f"/lifecycle/{member}"]


GOOD = [
    {"image": "x"}, {"image": "x" * 512}, {"resources": {"cpus": 1}}, {"resources": {"cpus": 64}},
    {"resources": {"memory": "128MiB"}}, {"storage": "1B"}, {"storage": "1024GiB"}, {"network": {"allow": []}},
    {"network": {"allow": [f"h{n}.org" for n in range(200)]}}, {"lifecycle": {"keep": 1}},
    {"lifecycle": {"keep": 1000}},
    {"lifecycle": {"onLost": "restore"}}, {"setup": ["x"]}, {"setup": ["x"] * 50}, {"setup": ["x" * 4096]},
    {"files": [BY_HASH] * 50}, {"files": [{**BY_ARTIFACT, "version": 1}]},
    {"files": [{**BY_ARTIFACT, "path": "p" * 512}]},
    {"files": [{"path": "a", "files": {f"f{n}": HASH for n in range(500)}}]},
    {"secrets": {f"S{n}": VARIABLE for n in range(64)}}, {"secrets": {"S" * 128: VARIABLE}},
    {"secrets": {"S": {**VARIABLE, "description": "é" * 500}}}, {"harness": "h" * 32}, {"harness": "0"},
]  # fmt: skip
BAD = [
    ({"image": ""}, "/image"), ({"image": "x" * 513}, "/image"), ({"image": "a b"}, "/image"),
    ({"image": "a\u2028b"}, "/image"), ({"image": "a\n"}, "/image"),
    ({"resources": {"cpus": 0}}, "/resources/cpus"), ({"resources": {"cpus": 65}}, "/resources/cpus"),
    ({"resources": {"cpus": 2.0}}, "/resources/cpus"), ({"resources": {"cpus": "2"}}, "/resources/cpus"),
    ({"resources": {"cpus": True}}, "/resources/cpus"), ({"resources": {"memory": "127MiB"}}, "/resources/memory"),
    ({"resources": {"memory": 1024}}, "/resources/memory"), ({"storage": "1025GiB"}, "/storage"),
    ({"storage": "0GiB"}, "/storage"), ({"network": {"allow": [f"h{n}.org" for n in range(201)]}}, "/network/allow"),
    ({"network": {"allow": ["a.org", "x"]}}, "/network/allow/1"), ({"network": {"allow": "a.org"}}, "/network/allow"),
    ({"network": []}, "/network"), ({"lifecycle": {"keep": 0}}, "/lifecycle/keep"),
    ({"lifecycle": {"keep": 1001}}, "/lifecycle/keep"), ({"lifecycle": {"onLost": "no"}}, "/lifecycle/onLost"),
    ({"lifecycle": {"snapshot": "always"}}, "/lifecycle/snapshot"), ({"setup": []}, "/setup"),
    ({"setup": ["x"] * 51}, "/setup"), ({"setup": [""]}, "/setup/0"), ({"setup": ["x" * 4097]}, "/setup/0"),
    ({"files": []}, "/files"), ({"files": [BY_HASH] * 51}, "/files"),
    ({"files": [{**BY_HASH, "files": {}}]}, "/files/0/files"),
    ({"files": [{"path": "a", "files": {f"f{n}": HASH for n in range(501)}}]}, "/files/0/files"),
    ({"files": [{**BY_HASH, "path": ""}]}, "/files/0/path"),
    ({"files": [{**BY_HASH, "path": "p" * 513}]}, "/files/0/path"),
    ({"files": [{**BY_HASH, "path": "/a"}]}, "/files/0/path"),
    ({"files": [{**BY_HASH, "path": "a/../b"}]}, "/files/0/path"),
    ({"files": [{**BY_HASH, "files": {"../x": HASH}}]}, "/files/0/files/..~1x"),
    ({"files": [{**BY_HASH, "files": {"x": HASH.upper()}}]}, "/files/0/files/x"),
    ({"files": [{**BY_HASH, "files": {"x": HASH + "0"}}]}, "/files/0/files/x"),
    ({"files": [{**BY_HASH, "version": 1}]}, "/files/0/version"),
    ({"files": [{**BY_ARTIFACT, "version": 0}]}, "/files/0/version"),
    ({"files": [{**BY_ARTIFACT, "version": "latest"}]}, "/files/0/version"),
    ({"files": [{**BY_ARTIFACT, "artifactId": ARTIFACT.upper()}]}, "/files/0/artifactId"),
    ({"secrets": {}}, "/secrets"), ({"secrets": {f"S{n}": VARIABLE for n in range(65)}}, "/secrets"),
    ({"secrets": {"S" * 129: VARIABLE}}, "/secrets/" + "S" * 129), ({"secrets": {"1S": VARIABLE}}, "/secrets/1S"),
    ({"secrets": {"S": {**VARIABLE, "description": "é" * 501}}}, "/secrets/S/description"),
    ({"secrets": {"S": {}}}, "/secrets/S/type"), ({"secrets": {"S": {**VARIABLE, "value": "x"}}}, "/secrets/S/value"),
    ({"harness": "h" * 33}, "/harness"), ({"harness": "-h"}, "/harness"), ({"harness": "H"}, "/harness"),
    ({"kind": "vm"}, "/kind"), ({"name": "x"}, "/name"), ({"requestId": ""}, "/requestId"),
    ({"requestId": "x" * 201}, "/requestId"),
]  # fmt: skip


@pytest.mark.parametrize("document", GOOD, ids=lambda document: str(document)[:40])
def test_each_bound_is_inside(document):
    """E-247: the value on the bound is taken as it is."""
    body, problems = parse(document)
    assert problems == []
    assert body.keys() == document.keys()


@pytest.mark.parametrize(("document", "path"), BAD, ids=lambda value: str(value)[:40])
def test_one_step_beyond_each_bound_is_a_problem_at_its_place(document, path):
    """E-247: the value next to the bound is refused with the pointer to it."""
    assert paths(document) == [path]


def test_all_problems_are_told_together_and_the_rest_is_kept():
    """E-47: one look finds every fault; fields that are right on their own remain for the rules."""
    body, problems = parse(
        {
            "kind": "pod",
            "image": None,
            "resources": {"cpus": 0, "memory": "x", "disk": 1},
            "setup": ["ok", 3],
            "harness": "nylorun",
            "more": 1,
        }
    )
    assert [problem["path"] for problem in problems] == [
        "/image",
        "/resources/cpus",
        "/resources/memory",
        "/resources/disk",
        "/setup/1",
        "/more",
    ]
    assert body == {"kind": "pod", "harness": "nylorun"}


def test_the_correlation_id_is_no_part_of_the_body():
    """E-43: ``requestId`` is taken and left out."""
    assert parse({"kind": "none", "requestId": "r-1"}) == ({"kind": "none"}, [])


def test_the_json_schema_is_of_2020_12_and_says_the_same():
    """E-247: bounds, names and closed objects of the body are in its JSON Schema."""
    published = schema.json_schema()
    assert published["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert list(published["properties"]) == list(schema.FIELDS)
    assert published["additionalProperties"] is False
    assert "required" not in published
    assert published["properties"]["setup"]["maxItems"] == 50
    assert published["properties"]["image"]["maxLength"] == 512
    assert published["$defs"]["Resources"]["properties"]["cpus"] == {
        "maximum": 64,
        "minimum": 1,
        "title": "Cpus",
        "type": "integer",
    }
    assert published["$defs"]["Lifecycle"]["properties"]["onLost"]["enum"] == ["refuse", "restore"]
    assert all(shape["additionalProperties"] is False for shape in published["$defs"].values())


def test_more_problems_than_are_told_are_still_problems():
    """E-47: the answer is bounded, what is wrong stays out of the rest."""
    bad = {f"bad name {n}": VARIABLE for n in range(64)}
    body, problems = parse({"setup": [""] * 50, "files": [{"path": "/", "files": {"/": "x"}}] * 50, "secrets": bad})
    assert (body, len(problems)) == ({}, 100)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 70)
    | st.sampled_from(["", "pod", "1m", "1GiB", "a.org", "*.a.org", HASH]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from((*schema.FIELDS, "x")), ANYTHING))
def test_nothing_breaks_the_reader_and_the_normal_form_is_final(document):
    """E-247: whatever is sent is a body or has problems; what is kept is its own normal form."""
    body, problems = parse(document)
    assert problems or body.keys() == document.keys()
    assert parse(body) == (body, [])
    for kind in schema.KINDS:
        if not problems_of(kind, body, in_force(None)):
            recipe = composed(kind, body, in_force(None))
            assert composed(kind, recipe, in_force(None)) == recipe
