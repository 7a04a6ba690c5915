"""Whatever a stranger sends, the door answers 4xx in its own form: never 5xx, never another form."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nylorun.http.jsonbody import parse_json
from nylorun.http.paths import decoded, decoded_tail, encoded
from nylorun.http.shape import read_query
from nylorun.kernel.errors import InvalidRequest
from tests.api.door_urls import Filters
from tests.support.client import Answer, Api

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
HEADER_TEXT = st.text(st.characters(min_codepoint=0, max_codepoint=255), max_size=80)
HEADERS = [
    *("Authorization", "Nylorun-Protocol", "Nylorun-Subject", "Nylorun-Scopes", "X-Request-Id", "Content-Type"),
    *("Content-Length", "Range", "If-Match", "Prefer", "Idempotency-Key", "Origin", "Host", "Transfer-Encoding"),
]
PATHS = st.text(st.sampled_from("ab/%.0123cCeEfF\\?#;:~ \x00é-_"), max_size=20)


@pytest.fixture(autouse=True)
def door_routes(settings: Any, db: Any) -> None:
    settings.ROOT_URLCONF = "tests.api.door_urls"


def expect_a_refusal_or_a_success(answer: Answer) -> None:
    assert answer.status < 500, answer.body
    if answer.status >= 400:
        body = answer.json
        assert set(body) <= {"status", "code", "message", "details"}
        assert (body["status"], bool(body["code"]), bool(body["message"])) == ("rejected", True, True)
    assert "X-Request-Id" in answer.headers


@FUZZ
@given(st.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_an_object_or_a_refusal(raw: bytes) -> None:
    """Pain 23: parse_json has two ends."""
    try:
        document = parse_json(raw)
    except InvalidRequest:
        return
    assert isinstance(document, dict)
    json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


@FUZZ
@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=5))
def test_what_is_read_means_what_was_sent(document: dict[str, Any]) -> None:
    """E-223: an object without oddities is read as it is."""
    try:
        raw = json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        read = parse_json(raw)
    except (ValueError, InvalidRequest):
        return
    assert read == document


@FUZZ
@given(st.text(max_size=40))
def test_an_encoded_segment_is_read_back(text: str) -> None:
    """E-32: what the server writes into its own URLs is what it reads."""
    try:
        segment = encoded(text)
    except UnicodeEncodeError:
        return
    assert "/" not in segment
    if "\x00" not in text:
        assert decoded(segment, "id") == text


@FUZZ
@given(PATHS)
def test_a_tail_never_leaves_its_folder(tail: str) -> None:
    """Pain 25: whatever is sent, the segments are plain names."""
    try:
        segments = decoded_tail(tail, "path")
    except InvalidRequest:
        return
    assert not any(segment in ("", ".", "..") or "/" in segment or "\x00" in segment for segment in segments)


@FUZZ
@given(st.text(st.sampled_from("labelimtcursordp=&%0129aAfF+;[]é\x00 "), max_size=40))
def test_any_query_is_read_or_refused(query: str) -> None:
    """Pain 23: fuzz of every query parameter."""
    with suppress(InvalidRequest):
        assert isinstance(read_query(Filters, query), Filters)


@FUZZ
@given(st.sampled_from(HEADERS), HEADER_TEXT)
def test_any_header_is_answered(api: Api, name: str, value: str) -> None:
    """Pain 23: no header value breaks the door."""
    sent = api.with_headers(**{name: value})
    expect_a_refusal_or_a_success(sent.get("/v1/test/echo/demo"))
    expect_a_refusal_or_a_success(sent.put("/v1/test/echo/demo", b'{"kind":"pod"}'))


@FUZZ
@given(st.binary(max_size=80) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_answered(api: Api, raw: bytes) -> None:
    """Pain 23: no body breaks the door."""
    expect_a_refusal_or_a_success(api.put("/v1/test/echo/demo", raw, Content_Type="application/json"))


@FUZZ
@given(PATHS, st.sampled_from(["GET", "PUT", "HEAD", "POST", "DELETE", "X"]))
def test_any_path_is_answered(api: Api, path: str, method: str) -> None:
    """Pain 25: no path breaks the door."""
    for prefix in ("/", "/v1/", "/v1/test/echo/", "/v1/test/raw/", "/v1/test/asked?"):
        target = prefix + quote(path, safe="/%?#;:~\\")
        answer = api.request(method, target)
        if method == "HEAD":
            assert answer.status < 500
        else:
            expect_a_refusal_or_a_success(answer)
