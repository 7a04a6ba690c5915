"""A value that is unlike anything else is looked for where it must not be: logs, answers, documents."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from nylorun.kernel.errors import ServiceUnavailable
from tests.support.client import Api
from tests.vault.helpers import BEARER, HEADERS, HOST, PLAIN, VARIABLE, permitted, put
from vault import keys
from vault.services import opening, write

SECRETS = "/v1/environments/demo/secrets"


def _bug(*args: Any, **named: Any) -> None:
    raise RuntimeError("a bug of ours")


def _away(*args: Any, **named: Any) -> None:
    raise ServiceUnavailable


@pytest.mark.parametrize("failure", [_bug, _away])
@pytest.mark.parametrize(("place", "name"), [(write, "prepare"), (write, "store"), (keys, "seal")])
def test_a_failing_write_logs_and_answers_no_value(
    demo: Api, caplog: Any, monkeypatch: Any, failure: Callable[..., None], place: Any, name: str
) -> None:
    """E-70: with its traceback, at every step, at the most talkative level."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(place, name, failure)
    for body in (VARIABLE, BEARER, HEADERS, HOST):
        answer = demo.put(f"{SECRETS}/NAME", body, **{"Idempotency-Key": "k"})
        assert answer.status in (500, 503)
        assert PLAIN not in answer.body.decode()
    assert caplog.text
    assert PLAIN not in caplog.text
    assert PLAIN not in str([record.__dict__ for record in caplog.records])


def test_refused_bodies_are_not_repeated(demo: Api, caplog: Any) -> None:
    """E-70: values in wrong places, of wrong forms, in broken JSON."""
    caplog.set_level(logging.DEBUG)
    for body in (
        {"type": "bearer", "url": "https://a.org", "value": [PLAIN]},
        {"type": "bearer", "url": 1, "value": PLAIN},
        {"type": "headers", "url": "https://a.org", "headers": {"X": [PLAIN]}},
        {"type": "headers", "url": "https://a.org", "headers": PLAIN},
        {"type": PLAIN},
        {"type": "environment_variable", "value": f"{PLAIN}" * 9000},
        f'{{"value":"{PLAIN}"'.encode(),
        f'{{"value":"{PLAIN}","value":"{PLAIN}"}}'.encode(),
        f'{{"value":"{PLAIN}\\ud800"}}'.encode(),
    ):
        headers = {"Content-Type": "application/json"} if isinstance(body, bytes) else {}
        answer = demo.put(f"{SECRETS}/NAME", body, **headers)
        assert answer.status == 400, body
        assert PLAIN not in answer.body.decode()
    assert PLAIN not in caplog.text


def test_opening_and_failing_to_open_logs_no_value(demo: Api, caplog: Any, monkeypatch: Any) -> None:
    """E-70, E-73."""
    caplog.set_level(logging.DEBUG)
    put(demo, "A", VARIABLE)
    permit = permitted()
    assert opening.open_variables(permit)["A"].reveal_text() == PLAIN
    monkeypatch.setattr(keys, "open_value", _away)
    with pytest.raises(ServiceUnavailable):
        opening.open_variables(permit)
    assert PLAIN not in caplog.text


def test_the_document_says_that_values_are_only_written(demo: Api) -> None:
    """E-70: no answer of the description has a member for a value."""
    document = demo.get("/v1/openapi.json").json
    shown = document["components"]["schemas"]["SecretInfo"]["properties"]
    assert not {"value", "headers"} & shown.keys()
    path = document["paths"]["/v1/environments/{id}/secrets/{name}"]
    assert path["put"]["x-word"] == path["delete"]["x-word"] == ["secret"]
    schemas = document["components"]["schemas"]
    for name in ("VariableSecret", "HostSecret", "BearerSecret"):
        assert schemas[name]["properties"]["value"]["writeOnly"] is True
