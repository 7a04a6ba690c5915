"""The door: one order of checks, one form of refusals, the same headers on every answer."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from nylorun.access import authentication
from nylorun.http.protocol import Features
from tests.support.client import Answer, Api

OPAQUE = b'{"status":"rejected","code":"not_found","message":"Not found"}'
ECHO = "/v1/test/echo/demo"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def door_routes(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ROOT_URLCONF = "tests.api.door_urls"
    monkeypatch.setattr(Features, "sandbox_pods", staticmethod(lambda: False))


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["code"]


def problems(answer: Answer) -> list[tuple[str, str]]:
    assert code(answer) == (400, "invalid_request")
    return [(problem["path"], problem["message"]) for problem in answer.json["details"]["problems"]]


# --- headers


def test_every_answer_has_a_request_id_and_a_protocol(api: Api) -> None:
    """E-222: also a refusal, an unknown route, a wrong method and a bug of ours carry X-Request-Id; E-221: the
    protocol.
    """
    targets = [ECHO, "/v1/nope", "/v1/test/fail/bug", "/v1/test/fail/database", "/", "/healthz", "/v1/%ff"]
    answers = [api.get(target) for target in targets] + [api.post(ECHO), Api().get(ECHO)]
    assert [answer.status for answer in answers] == [200, 404, 500, 503, 404, 200, 404, 405, 404]
    for answer in answers:
        assert uuid.UUID(answer.headers["X-Request-Id"])
        assert answer.headers["Nylorun-Protocol"] == "16"


@pytest.mark.parametrize("sent", ["a", "A.b_c:d-1", "x" * 128])
def test_a_well_formed_request_id_is_kept(api: Api, sent: str) -> None:
    """E-222: kept when well-formed."""
    assert api.get(ECHO, X_Request_Id=sent).headers["X-Request-Id"] == sent


@pytest.mark.parametrize("sent", ["", " ", "a b", "x" * 129, "é", "a\n", "a,b"])
def test_another_request_id_is_replaced_and_never_refused(api: Api, sent: str) -> None:
    """E-222: else a new UUID."""
    answer = api.get(ECHO, X_Request_Id=sent)
    assert answer.status == 200
    assert uuid.UUID(answer.headers["X-Request-Id"])


@pytest.mark.parametrize("sent", ["14", "15", "16"])
def test_a_served_protocol_is_answered(api: Api, sent: str) -> None:
    """E-221: range 14..16, always answered."""
    answer = api.get(ECHO, Nylorun_Protocol=sent)
    assert (answer.status, answer.headers["Nylorun-Protocol"]) == (200, sent)


@pytest.mark.parametrize("sent", ["13", "17", "0", "-1", "1e1", "", " 14", "sixteen", "16.0", "9" * 40, "\uff11\uff16"])
def test_another_protocol_is_426_with_the_range(api: Api, sent: str) -> None:
    """E-172: outside the range or not an integer is 426, which says what is served."""
    answer = api.get(ECHO, Nylorun_Protocol=sent)
    assert code(answer) == (426, "protocol_unsupported")
    assert answer.json["details"] == {
        "min": 14,
        "max": 16,
        "features": ["agents", "environments", "subject-tokens", "tenant-fixture-model"],
    }
    assert answer.headers["Nylorun-Protocol"] == "16"


def test_sandbox_pods_is_a_feature_only_while_they_can_be_made(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-172: sandbox-pods is listed only while a Driver is ready."""
    assert "sandbox-pods" not in api.get("/v1/me").json["protocol"]["features"]
    monkeypatch.setattr(Features, "sandbox_pods", staticmethod(lambda: True))
    assert api.get("/v1/me").json["protocol"]["features"] == [
        "agents",
        "environments",
        "sandbox-pods",
        "subject-tokens",
        "tenant-fixture-model",
    ]


def test_an_older_protocol_does_not_reach_the_agents_routes(api: Api) -> None:
    """E-172: a declared 14 or 15 under /v1/agents is 426; 16 and none are served."""
    statuses = [api.get("/v1/agents/test/write", Nylorun_Protocol=sent).status for sent in ("14", "15", "16")]
    assert (statuses, api.get("/v1/agents/test/write").status) == ([426, 426, 200], 200)


@pytest.mark.parametrize("target", ["/healthz", "/v1/openapi.json", "/v1/docs", "/v1/access/jwks"])
def test_some_routes_ignore_the_protocol(db: Any, target: str) -> None:
    """E-172: health, description and public keys answer whatever is declared."""
    assert Api().get(target, Nylorun_Protocol="1").status == 200


# --- the order of checks


def test_checks_run_in_their_order(api: Api) -> None:
    """E-172: route, method, protocol, Caller, scope, body, reach: the first fault answers."""
    nobody, reader = Api(), api.as_subject("ada", "sessions:own")
    bad: Any = {"Nylorun_Protocol": "1"}
    assert code(nobody.get("/v1/nope", **bad)) == (404, "not_found")
    assert code(nobody.post(ECHO, **bad)) == (405, "method_not_allowed")
    assert code(nobody.put(ECHO, b"{", **bad)) == (426, "protocol_unsupported")
    assert code(nobody.put(ECHO, b"{")) == (404, "not_found")
    assert code(reader.put(ECHO, b"{")) == (403, "scope_required")
    assert code(api.put("/v1/test/echo/..%2F", b"{", **JSON)) == (400, "invalid_request")


@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_another_method_is_405_and_says_which(method: str, db: Any) -> None:
    """E-223: a known path with another method names the ones it has, before any credential is asked for."""
    answer = Api().request(method, ECHO)
    assert code(answer) == (405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET, HEAD, PUT"


def test_head_is_get_without_a_body(api: Api) -> None:
    """E-223: the same status and headers, no bytes."""
    got, head = api.get(ECHO), api.head(ECHO)
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(got.body)))
    listed = Api().head("/v1/test/numbers")
    assert (listed.status, listed.body) == (200, b"")


# --- the opaque 404


def test_unknown_route_and_unknown_credential_look_alike(api: Api) -> None:
    """E-170: byte-identical for an unknown route and a missing, malformed or unknown credential."""
    key = api.headers["Authorization"].removeprefix("Bearer ")
    credentials = [None, "", key, f"bearer {key}", f"Bearer  {key}", f"Bearer {key.upper()}", f"Bearer {key}0"]
    credentials += [f"Bearer {'0' * 64}", "Bearer a.b.c", "Basic eA==", f"Bearer {key},Bearer {key}"]
    answers = [api.with_headers(Authorization=sent).get(ECHO) for sent in credentials]
    answers += [api.get("/v1/nope"), api.get("/v1/test/echo/a/b"), api.get("/v2/test"), api.get("/v1/test/echo/demo/")]
    for answer in answers:
        assert (answer.status, answer.body) == (404, OPAQUE)
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"


def test_a_person_never_sees_what_only_applications_have(api: Api) -> None:
    """E-170: what a Caller may never use looks missing."""
    answer = api.as_subject("ada", "tenant:settings").get("/v1/access/test/app")
    assert (answer.status, answer.body) == (404, OPAQUE)


# --- the body


def test_a_body_is_read_by_its_wire_names(api: Api) -> None:
    """E-223: strict and by wire name; an absent or empty body counts as {}."""
    sent = {"kind": "pod", "labels": {"a": "b"}, "requestId": "r-1"}
    answer = api.put(ECHO, sent)
    assert (answer.status, answer.headers["Location"]) == (201, "/here")
    assert answer.json["wish"] == sent
    answers = [api.put(ECHO), api.put(ECHO, b""), api.put(ECHO, iter([])), api.put(ECHO, b" \n", **JSON)]
    assert [answer.json["wish"] for answer in answers] == [{"labels": {}}] * 4


def test_every_problem_of_a_body_is_named(api: Api) -> None:
    """E-223: schema refusals list every problem, as JSON Pointers."""
    answer = api.put(ECHO, {"kind": "vm", "labels": {"a/b": 1, "c": None}, "request_id": "x", "requestId": None})
    assert problems(answer) == [
        ("/requestId", "must be a string"),
        ("/kind", "must be virtual, pod or none"),
        ("/labels/a~1b", "must be a string"),
        ("/labels/c", "must be a string"),
        ("/request_id", "is not a member of this object"),
    ]
    assert answer.json["message"].startswith("5 problems: /requestId, /kind")


@pytest.mark.parametrize(("count", "status"), [(None, 201), (0, 201), (7, 201), (True, 400), ("0", 400), (0.0, 400)])
def test_absent_null_zero_and_a_value_are_different(api: Api, count: Any, status: int) -> None:
    """Pain 24: 0 and false are values; a number is no boolean and no text."""
    answer = api.put(ECHO, {"count": count})
    assert answer.status == status
    if status == 201:
        assert answer.json["wish"].get("count") == count


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "is not JSON: line 1, column 2"),
        (b'{"kind":"pod",}', "is not JSON: line 1, column 15"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b"\xff", "is not UTF-8"),
        (b"\xef\xbb\xbf{}", "is not JSON: line 1, column 1"),
        (b'{"kind":"pod","kind":"pod"}', 'names the member "kind" twice'),
        (b'{"labels":{"a":"1","\\u0061":"2"}}', 'names the member "a" twice'),
        (b'{"count":NaN}', "holds NaN, which is not JSON"),
        (b'{"count":-Infinity}', "holds -Infinity, which is not JSON"),
        (b'{"count":1e999}', "holds a number that is too large"),
        (b'{"count":9223372036854775808}', "holds an integer beyond 64 bits"),
        (b'{"count":' + b"9" * 6000 + b"}", "holds an integer beyond 64 bits"),
        (b"[" * 100_000, "is nested deeper than 64 levels"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "is nested deeper than 64 levels"),
    ],
)
def test_what_is_no_json_object_is_refused(api: Api, raw: bytes, message: str) -> None:
    """E-223: a duplicate member name, broken JSON and numbers nobody can hold are 400, never 500."""
    assert problems(api.put(ECHO, raw, **JSON)) == [("", message)]


def test_text_that_no_column_can_hold_is_refused(api: Api) -> None:
    """Pain 23: U+0000 and half a surrogate pair are faults of the request."""
    raw = b'{"labels":{"a":"\\u0000","b":"\\ud800","\\udc00":"x"}}'
    assert sorted(problems(api.put(ECHO, raw, **JSON))) == [
        ("/labels", "must not hold half a surrogate pair"),
        ("/labels/a", "must not hold the character U+0000"),
        ("/labels/b", "must not hold half a surrogate pair"),
    ]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/yaml", "application/json; charset=latin-1", "multipart/form-data; x", "", "/"]
)
def test_another_media_type_is_415(api: Api, kind: str) -> None:
    """E-223: only JSON in UTF-8 is read."""
    assert code(api.put(ECHO, b"{}", Content_Type=kind)) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json;charset=UTF-8", 'Application/JSON; charset="utf-8"; x=y'])
def test_json_may_state_its_charset(api: Api, kind: str) -> None:
    """E-223: parameters that say nothing new are no fault."""
    assert api.put(ECHO, b"{}", Content_Type=kind).status == 201


def test_a_body_above_its_limit_is_413(api: Api) -> None:
    """E-223: BODY_MAX holds for a stated length and for a chunked body alike, and is refused before the media type."""
    limit = 1 << 20
    answers = [
        api.put(ECHO, b" " * (limit + 1), Content_Type="text/plain"),
        api.put(ECHO, iter([b" " * limit, b"x"]), **JSON),
    ]
    for answer in answers:
        assert code(answer) == (413, "limit_exceeded")
        assert answer.json["details"] == {"limit": "body", "limitBytes": limit}
    assert api.put(ECHO, b"{}" + b" " * (limit - 2), **JSON).status == 201


def test_a_body_that_ends_early_is_refused(api: Api) -> None:
    """E-223: a cut body is never taken for a whole one."""
    answer = api.put(ECHO, b"{}", Content_Type="application/json", Content_Length="10")
    assert problems(answer) == [("", "is malformed or ended before its stated length")]


@pytest.mark.parametrize("length", ["x", "-1", "1.0", "1" * 30])
def test_a_malformed_length_is_refused(api: Api, length: str) -> None:
    """Pain 23: a header nobody can read is 400."""
    assert api.put(ECHO, b"{}", Content_Type="application/json", Content_Length=length).status == 400


def test_raw_bodies_are_streamed_and_bounded(db: Any) -> None:
    """E-223: raw bytes of any type, by length or in chunks, up to the route's limit."""
    put = Api().put
    assert put("/v1/test/raw/a", b"x" * 1000).json["size"] == 1000
    assert put("/v1/test/raw/a", iter([b"x" * 300] * 3)).json["size"] == 900
    for answer in (put("/v1/test/raw/a", b"x" * 1001), put("/v1/test/raw/a", iter([b"x" * 300] * 4))):
        assert answer.json["details"] == {"limit": "files", "limitBytes": 1000}


# --- failures


@pytest.mark.parametrize("cause", ["database", "pool"])
def test_a_database_that_is_away_is_503(db: Any, cause: str) -> None:
    """E-223: come back in 5 s; nothing of the cause is told."""
    answer = Api().get(f"/v1/test/fail/{cause}")
    assert code(answer) == (503, "service_unavailable")
    assert (answer.headers["Retry-After"], answer.json["details"]) == ("5", {"retryAfterSeconds": 5})
    assert b"secret" not in answer.body


def test_a_database_that_is_away_during_the_caller_check_is_503(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-223: the caller check answers like every other look at the database."""

    def refuse(*args: object) -> None:
        raise OperationalError("secret text")

    monkeypatch.setattr(authentication, "_principal", refuse)
    assert code(api.get(ECHO)) == (503, "service_unavailable")


@pytest.mark.parametrize("cause", ["bug", "start-over"])
def test_a_bug_is_500_with_a_fixed_text_and_logged_once(db: Any, cause: str, caplog: pytest.LogCaptureFixture) -> None:
    """E-223: internal_error tells nothing; the log has the cause and the request's id, once."""
    answer = Api().get(f"/v1/test/fail/{cause}", X_Request_Id="r-77")
    assert answer.json == {
        "status": "rejected",
        "code": "internal_error",
        "message": "The server failed to answer. Try again.",
    }
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in errors] == [f"request r-77: GET /v1/test/fail/{cause} failed"]
    assert "secret text" in str(errors[0].exc_info)


def test_a_refusal_with_broken_text_is_still_an_answer(db: Any) -> None:
    """Pain 23: an error that quotes what was sent is UTF-8 in any case."""
    assert Api().get("/v1/test/fail/unprintable").json["details"]["problems"][0]["path"] == "/?"


def test_a_request_costs_one_query_for_its_caller(api: Api) -> None:
    """E-159: the caller check is one look at the key."""
    with CaptureQueriesContext(connection) as queries:
        assert api.get(ECHO).status == 200
    assert len(queries) == 1
