"""Shapes: the words of each fault, and where it is."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from nylorun.http.problems import between
from nylorun.http.shape import Body, Misfit, Post, Query, Shape, problems_of, read_body, read_query
from nylorun.kernel.errors import InvalidRequest


def no_spaces(text: str) -> str:
    if " " in text:
        raise ValueError("must not hold spaces")
    return text


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Git(Shape):
    kind: Literal["git"]
    url: str


class Copy(Shape):
    kind: Literal["copy"]
    from_id: str


class Pair(Shape):
    low: int
    high: int

    @model_validator(mode="after")
    def _ordered(self) -> Pair:
        if self.low > self.high:
            raise Misfit([{"path": "/low", "message": "must be at most high"}, {"path": "/high", "message": "is less"}])
        return self


class Everything(Post):
    text: Annotated[str, StringConstraints(min_length=2, max_length=3, pattern="^[a-z]+$")] | None = None
    amount: Annotated[int, between(1, 5)] | None = None
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    flag: bool | None = None
    names: Annotated[list[str], Field(min_length=1, max_length=2)] | None = None
    pairs: dict[str, Pair] | None = None
    color: Color | None = None
    source: Annotated[Git | Copy, Field(discriminator="kind")] | None = None
    either: int | list[str] | None = None
    word: Annotated[str, AfterValidator(no_spaces)] | None = None
    moment: datetime | None = None
    uid: UUID | None = None
    two: tuple[int, int] | None = None


def faults(document: str) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRequest) as refused:
        read_body(Everything, document.encode())
    return [(problem["path"], problem["message"]) for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ('{"text":1}', [("/text", "must be a string")]),
        ('{"text":"a"}', [("/text", "must be at least 2 characters")]),
        ('{"text":"abcd"}', [("/text", "must be at most 3 characters")]),
        ('{"text":"A1"}', [("/text", "must match ^[a-z]+$")]),
        ('{"amount":0}', [("/amount", "must be at least 1")]),
        ('{"amount":6}', [("/amount", "must be at most 5")]),
        ('{"amount":1.5}', [("/amount", "must be an integer")]),
        ('{"amount":true}', [("/amount", "must be an integer")]),
        ('{"amount":"1"}', [("/amount", "must be an integer")]),
        ('{"share":0}', [("/share", "must be more than 0.0")]),
        ('{"share":1}', [("/share", "must be less than 1.0")]),
        ('{"share":"x"}', [("/share", "must be a number")]),
        ('{"flag":1}', [("/flag", "must be true or false")]),
        ('{"flag":"true"}', [("/flag", "must be true or false")]),
        ('{"names":{}}', [("/names", "must be a list")]),
        ('{"names":[]}', [("/names", "must be at least 1 entries")]),
        ('{"names":["a","b","c"]}', [("/names", "must be at most 2 entries")]),
        ('{"names":["a",2]}', [("/names/1", "must be a string")]),
        ('{"pairs":[]}', [("/pairs", "must be an object")]),
        ('{"pairs":{"a":1}}', [("/pairs/a", "must be an object")]),
        ('{"pairs":{"a/~b":{"low":1}}}', [("/pairs/a~1~0b/high", "is required")]),
        (
            '{"pairs":{"a":{"low":2,"high":1}}}',
            [("/pairs/a/low", "must be at most high"), ("/pairs/a/high", "is less")],
        ),
        ('{"color":"green"}', [("/color", "must be red or blue")]),
        ('{"source":{"kind":"svn"}}', [("/source", "must be git, copy")]),
        ('{"source":{}}', [("/source/kind", "is required")]),
        ('{"source":{"kind":"git"}}', [("/source/url", "is required")]),
        ('{"source":{"kind":"copy","fromId":1}}', [("/source/fromId", "must be a string")]),
        (
            '{"source":{"kind":"copy","from_id":"x"}}',
            [("/source/fromId", "is required"), ("/source/from_id", "is not a member of this object")],
        ),
        ('{"either":"x"}', [("/either", "must be an integer or must be a list")]),
        ('{"either":[1]}', [("/either", "must be an integer"), ("/either/0", "must be a string")]),
        ('{"word":"a b"}', [("/word", "must not hold spaces")]),
        ('{"moment":"yesterday"}', [("/moment", "must be a time such as 2030-01-01T10:00:00Z")]),
        ('{"moment":5}', [("/moment", "must be a time such as 2030-01-01T10:00:00Z")]),
        ('{"uid":"x"}', [("/uid", "must be a UUID")]),
        ('{"two":[1]}', [("/two/1", "is required")]),
        ('{"idempotencyKey":"a b"}', [("/idempotencyKey", "must match ^[\\x21-\\x7e]+$")]),
        ('{"requestId":""}', [("/requestId", "must be at least 1 characters")]),
        (
            '{"requestId":null,"idempotencyKey":null}',
            [("/requestId", "must be a string"), ("/idempotencyKey", "must be a string")],
        ),
        ('{"idempotency_key":"x"}', [("/idempotency_key", "is not a member of this object")]),
    ],
)
def test_a_fault_has_its_place_and_its_words(document: str, found: list[tuple[str, str]]) -> None:
    """E-223: schema refusals list every problem as JSON Pointer and message."""
    assert faults(document) == found


def test_json_forms_of_other_types_are_read() -> None:
    """E-223: enums, times, UUIDs and tuples come from JSON strings and lists."""
    body = read_body(Everything, b'{"color":"red","two":[1,2],"moment":"2030-01-01T10:00:00Z","amount":1}')
    assert (body.color, body.two, body.amount) == (Color.RED, (1, 2), 1)
    assert body.moment is not None
    assert body.moment.tzinfo is not None


def test_a_put_body_has_no_idempotency_key() -> None:
    """http §1: the key is a member of POST bodies and Secret writes."""
    assert read_body(Body, b'{"requestId":"r"}').request_id == "r"
    with pytest.raises(InvalidRequest):
        read_body(Body, b'{"idempotencyKey":"k"}')


def test_a_prefix_stands_before_every_pointer() -> None:
    """E-223: a document inside a body reports where it lies."""
    with pytest.raises(ValidationError) as failed:
        Pair.model_validate({"low": "x"})
    assert problems_of(failed.value, "/recipe") == [
        {"path": "/recipe/low", "message": "must be an integer"},
        {"path": "/recipe/high", "message": "is required"},
    ]


class Listed(Query):
    state: list[Literal["queued", "running"]] = []
    wait: Annotated[int, between(0, 60)] | None = None
    dry_run: bool | None = None
    sizes: list[int] = []
    name: str = "none"


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("", {}),
        ("state=queued&state=running", {"state": ["queued", "running"]}),
        ("wait=0", {"wait": 0}),
        ("dryRun=false", {"dry_run": False}),
        ("dryRun=1", {"dry_run": True}),
        ("sizes=1&sizes=-2", {"sizes": [1, -2]}),
        ("name=1", {"name": "1"}),
        ("name=true&", {"name": "true"}),
    ],
)
def test_a_query_is_text_by_its_declared_type(query: str, values: dict[str, Any]) -> None:
    """E-223, pain 24: repeatable parameters, integers and booleans by grammar."""
    assert read_query(Listed, query) == Listed.model_validate_json("{}").model_copy(update=values)


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("state=x", "?state"),
        ("wait=61", "?wait"),
        ("dry_run=1", "?dry_run"),
        ("sizes=1&sizes=x", "?sizes"),
        ("dryRun=1&dryRun=1", "?dryRun"),
    ],
)
def test_a_query_fault_names_its_parameter(query: str, path: str) -> None:
    """E-223: ?name for a query parameter."""
    with pytest.raises(InvalidRequest) as refused:
        read_query(Listed, query)
    assert [problem["path"] for problem in refused.value.problems] == [path]
