"""What a request target says: paths decoded segment by segment, query parameters by their declared types."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import Answer, Api

ECHO = "/v1/test/echo/demo"


@pytest.fixture(autouse=True)
def door_routes(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.api.door_urls"


def problems(answer: Answer) -> list[tuple[str, str]]:
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    return [(problem["path"], problem["message"]) for problem in answer.json["details"]["problems"]]


# --- the path


def test_routing_works_on_the_undecoded_path(api: Api) -> None:
    """E-32: an id with a slash travels as one encoded segment."""
    assert api.get("/v1/test/echo/team-a%2Fproj-42").json["id"] == "team-a/proj-42"
    assert api.get("http://somewhere/v1/test/echo/team-a%2fproj-42?").json["id"] == "team-a/proj-42"
    assert api.get("/v1/test/echo/team-a/proj-42").status == 404
    assert api.get("/v1%2Ftest/echo/a").status == 404


@pytest.mark.parametrize(
    "segment",
    [
        "%",
        "%2",
        "%zz",
        "%ff",
        "%c3%28",
        "a%00b",
        "..",
        ".",
        "%2e%2e",
        "..%2Fa",
        "a%2F..%2Fb",
        "a%2F%2Fb",
        "%2Fa",
        "a%2F",
        *("-a", "a b", "a%20b", "%C3%A9", "é", "a" * 201, "a\\b", "~", "a;b", "a:b", "a%0a"),
    ],
)
def test_a_malformed_id_is_400(api: Api, segment: str) -> None:
    """E-32, pain 25: what is no id of 1..200 never reaches a row, a path or a name."""
    for answer in (api.get(f"/v1/test/echo/{segment}"), api.put(f"/v1/test/echo/{segment}", {})):
        assert [path for path, _ in problems(answer)] == ["{id}"]


@pytest.mark.parametrize("path", ["a%2Fb", "%2e", "..", "a/../b", "a/%2e%2e/b", "a//b", "a/", "%00", "%ff", "a/%"])
def test_a_tail_with_another_segment_is_400(db: Any, path: str) -> None:
    """Pain 25: each segment is decoded on its own; an encoded /, ., .. or NUL goes nowhere."""
    assert [found for found, _ in problems(Api().put(f"/v1/test/raw/{path}"))] == ["{path}"]


def test_a_tail_is_decoded_segment_by_segment(db: Any) -> None:
    """E-32: names of files are text."""
    segments = Api().put("/v1/test/raw/a%20b/%C3%A9/...").json["segments"]
    assert segments == ["a b", "é", "..."]


# --- the query


@pytest.mark.parametrize(
    ("query", "path", "message"),
    [
        ("size=x", "?size", "must be an integer"),
        ("size=", "?size", "must be an integer"),
        ("size=+1", "?size", "must be an integer"),
        ("size=1_0", "?size", "must be an integer"),
        ("size=01", "?size", "must be an integer"),
        ("size=%31%30e1", "?size", "must be an integer"),
        ("size=1&size=1", "?size", "must be sent once"),
        ("on=yes", "?on", "must be true, 1, false or 0"),
        ("on=", "?on", "must be true, 1, false or 0"),
        ("on=TRUE", "?on", "must be true, 1, false or 0"),
        ("other=1", "?other", "is not a parameter of this route"),
        ("=1", "?", "is not a parameter of this route"),
        ("name=%zz", "?", "holds a malformed percent-encoding"),
        ("name=%ff", "?", "is not UTF-8"),
        ("name=%00", "?name", "must not hold the character U+0000"),
        ("size=%00", "?size", "must not hold the character U+0000"),
        ("on=1%00", "?on", "must not hold the character U+0000"),
        ("na%00me=1", "?", "must not hold the character U+0000"),
        ("&".join(f"a{n}=1" for n in range(300)), "?", "has more than 200 parameters"),
    ],
)
def test_a_malformed_query_is_400(db: Any, query: str, path: str, message: str) -> None:
    """Pain 23: query parameters are as strict as bodies."""
    assert problems(Api().get(f"/v1/test/asked?{query}")) == [(path, message)]


def test_a_cursor_with_a_nul_is_told_by_its_name(api: Api) -> None:
    """E-223: beside every other fault of the query."""
    assert problems(api.get("/v1/environments?cursor=%00&limit=0")) == [
        ("?cursor", "must not hold the character U+0000"), ("?limit", "must be at least 1"),
    ]  # fmt: skip


def test_a_route_without_parameters_takes_none(api: Api) -> None:
    """E-223: an unknown query parameter is refused on every route, after the Caller is known."""
    assert problems(api.get(f"{ECHO}?x=1&y=2")) == [
        ("?x", "is not a parameter of this route"),
        ("?y", "is not a parameter of this route"),
    ]
    assert problems(api.put(f"{ECHO}?%zz", {})) == [("?", "holds a malformed percent-encoding")]
    assert Api().get(f"{ECHO}?x=1").status == 404
    assert (api.get(f"{ECHO}?").status, Api().get("/healthz?probe=1").status) == (200, 200)


def test_a_query_is_read_by_its_types(db: Any) -> None:
    """Pain 24: 0, false and the empty text are values."""
    assert Api().get("/v1/test/asked?size=0&on=0&name=").json == {"size": 0, "on": False, "name": ""}
    assert Api().get("/v1/test/asked?size=-12&on=1&name=a%20b+c").json == {"size": -12, "on": True, "name": "a b c"}
