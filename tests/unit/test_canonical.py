"""Canonical JSON: one text and one hash for everything that means the same."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nylorun.kernel.canonical import canonical, canonical_hash, same

VALUES = st.recursive(
    st.integers(-(2**53), 2**53) | st.booleans() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"harness":"nylorun","lifecycle":{},"resources":{"cpus":2,"memory":"1024MiB"}}',
            "sha256:55084428bdba1336be63ad26cf565f1d8d303965bc7977aa47b519a4ddc8b8bb",
        ),
        (
            '{"harness":"nylorun","lifecycle":{"idle":"30m"},"setup":["echo ä"]}',
            "sha256:452ae7ccd50017abd6d5a7d2dd78f4b09a156c731c1f9b99b54c7211cca371c4",
        ),
    ],
)
def test_the_published_vectors_hold(text, expected):
    """E-54: the canonical text is what is hashed, in UTF-8 without escapes."""
    value = json.loads(text)
    assert canonical(value) == text
    assert canonical_hash(value) == expected


def test_keys_are_sorted_by_code_point_and_absent_members_are_dropped():
    """E-54: no locale, no member without a value, lists in order, no spaces."""
    value = {"b": [3, 1, None], "B": {"z": None, "a": ""}, "ä": 0, "a": False, "~": "é\n"}
    assert canonical(value) == '{"B":{"a":""},"a":false,"b":[3,1,null],"~":"é\\n","ä":0}'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {"a": [math.nan]}])
def test_what_has_no_json_form_is_refused(value):
    """E-54: NaN and infinities are refused."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 0}, {}), ({"a": False}, {}), ({"a": ""}, {}), ({"a": []}, {}), ({"a": {}}, {}), ({"a": 0}, {"a": False}),
     ({"a": 1}, {"a": True}), ({"a": "1"}, {"a": 1})],
)  # fmt: skip
def test_zero_false_and_empty_are_values(one, other):
    """E-54: only ``null`` counts as absent; 0, false and empty are not."""
    assert not same(one, other)
    assert same({"a": None}, {})


@given(VALUES)
def test_the_text_means_the_value_and_is_its_own_canonical_form(value):
    """E-54: nothing is lost, whatever the order of the keys."""
    text = canonical(value)
    assert json.loads(text) == value
    assert canonical(json.loads(text)) == text
