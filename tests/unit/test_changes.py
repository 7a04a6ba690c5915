"""Changes between two Recipes."""

from manifests.recipe import changes

BASE = {"harness": "nylorun", "lifecycle": {}, "resources": {"cpus": 2, "memory": "1024MiB"}}


def test_the_same_recipe_has_no_changes():
    """E-60: equal by canonical form, whatever the order of members."""
    assert changes(BASE, dict(reversed(BASE.items()))) == []


def test_changes_are_told_by_field_in_order():
    """E-60: over the union of the keys; absent shows as ``None``."""
    one = {**BASE, "image": "python:3.12-slim", "setup": ["a"]}
    other = {**BASE, "image": "python:3.13-slim", "network": {"allow": ["a.org"]}}
    assert changes(one, other) == [
        {"field": "image", "from": "python:3.12-slim", "to": "python:3.13-slim"},
        {"field": "network", "from": None, "to": {"allow": ["a.org"]}},
        {"field": "setup", "from": ["a"], "to": None},
    ]


def test_secrets_are_compared_slot_by_slot():
    """E-60: one field per Slot; an equal Slot is no change."""
    variable = {"type": "environment_variable"}
    one = {**BASE, "secrets": {"OLD": variable, "SAME": variable, "b": variable}}
    other = {**BASE, "secrets": {"NEW": variable, "SAME": variable, "b": {**variable, "required": True}}}
    assert changes(one, other) == [
        {"field": "secrets.NEW", "from": None, "to": variable},
        {"field": "secrets.OLD", "from": variable, "to": None},
        {"field": "secrets.b", "from": variable, "to": {**variable, "required": True}},
    ]


def test_from_nothing_every_field_is_a_change():
    """E-60: a first version changes all fields."""
    assert [
        change["field"] for change in changes({}, {**BASE, "secrets": {"A": {"type": "environment_variable"}}})
    ] == [
        "harness",
        "lifecycle",
        "resources",
        "secrets.A",
    ]


def test_an_empty_value_is_not_an_absent_one():
    """E-60: an empty list appears and disappears."""
    assert changes(BASE, {**BASE, "network": {"allow": []}}) == [
        {"field": "network", "from": None, "to": {"allow": []}}
    ]
