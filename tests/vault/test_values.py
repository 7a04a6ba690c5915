"""A plaintext in memory: nothing that prints, copies or sends things shows it."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from vault.bodies import read_secret
from vault.values import Value

PLAIN = "s3cret-value"


@pytest.mark.parametrize("value", [Value.of_text(PLAIN), Value.of_headers({"X": PLAIN})])
def test_a_value_hides_itself(value: Value) -> None:
    """E-70: repr, str, formats, and what would carry it out of its process."""
    for text in (repr(value), str(value), f"{value}", f"{value!r}", "%s" % value, repr([value]), repr({"a": value})):  # noqa: UP031
        assert PLAIN not in text
    for carry in (pickle.dumps, copy.copy, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError):
            carry(value)
    assert not hasattr(value, "__dict__")
    assert value.plaintext().decode().count(PLAIN) == 1


def test_a_body_that_was_read_hides_its_value() -> None:
    """E-70: the value, and what the idempotency key is compared by."""
    for body in ({"value": PLAIN}, {"headers": {"A": PLAIN}}, {"type": "environment_variable", "value": PLAIN}):
        assert PLAIN not in repr(read_secret(json.dumps(body).encode()))


def test_the_plaintext_is_canonical() -> None:
    """E-69: ``{value}`` or ``{headers}``, the same bytes for the same meaning."""
    assert Value.of_text("é").plaintext() == '{"value":"é"}'.encode()
    assert Value.of_headers({"B": "2", "A": "1"}).plaintext() == b'{"headers":{"A":"1","B":"2"}}'
    assert Value.of_plaintext(b'{"headers":{"A":"1"}}').reveal_headers() == {"A": "1"}
    assert Value.of_headers({"X-B": "2", "a": "1"}).header_names == ["a", "x-b"]
