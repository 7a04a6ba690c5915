"""Routes that exist only in the tests of the door: they answer what they read."""

from __future__ import annotations

from typing import Any, Literal

from django.db import OperationalError
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import path
from psycopg_pool import PoolTimeout
from rest_framework.request import Request

from nylorun.db.locks import StartOver
from nylorun.http import words
from nylorun.http.openapi import describes
from nylorun.http.paging import Listing
from nylorun.http.shape import Paging, Post, Query
from nylorun.http.view import ApiView
from nylorun.kernel.errors import InvalidRequest
from nylorun.urls import handler400, handler404, handler500
from nylorun.urls import urlpatterns as product

__all__ = ["handler400", "handler404", "handler500"]


class Wish(Post):
    """A body."""

    kind: Literal["virtual", "pod", "none"] | None = None
    labels: dict[str, str] = {}
    count: int | None = None


class Filters(Paging):
    """The query of a list."""

    label: list[str] = []
    deep: bool = False


class Echo(ApiView):
    """Answers its input."""

    word = words.WRITE
    words = {"GET": words.READ}

    def get(self, request: Request, id: str) -> HttpResponse:
        return self.answer({"id": self.environment_id(), "caller": self.caller.actor})

    def put(self, request: Request, id: str) -> HttpResponse:
        wish = self.body(Wish)
        return self.answer({"id": self.environment_id(), "wish": wish}, status=201, headers={"Location": "/here"})


class Raw(ApiView):
    """Counts raw bytes."""

    word = words.PUBLIC

    def put(self, request: Request, path: str) -> HttpResponse:
        size = sum(len(chunk) for chunk in self.raw_body(1000, "files").chunks(64))
        return self.answer({"segments": self.segments("path"), "size": size})


class Numbers(ApiView):
    """A list of the numbers 0 to 449; only even ones are reached with ``deep``."""

    word = words.PUBLIC
    reads: list[Any] = []

    @describes(query=Filters)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.query(Filters)

        def read(after: Any, count: int) -> list[int]:
            self.reads.append((after, count))
            start = after[0] + 1 if after else 0
            return list(range(start, min(start + count, 450)))

        keep = (lambda number: number % 2 == 0) if query.deep else None
        return self.answer_list("numbers", Listing(read, lambda number: [number], keep), query, lambda number: number)


class Failing(ApiView):
    """Fails in the way its path names."""

    word = words.PUBLIC
    causes = {
        "database": OperationalError("secret text"),
        "pool": PoolTimeout("secret text"),
        "start-over": StartOver("secret text"),
        "bug": ZeroDivisionError("secret text"),
        "unprintable": InvalidRequest([{"path": "/\ud800", "message": "is \ud800"}]),
    }

    def get(self, request: Request, cause: str) -> HttpResponse:
        raise self.causes[cause]


class Worded(ApiView):
    """A route of every word."""

    word = words.ANY

    def get(self, request: Request) -> HttpResponse:
        return self.answer({})


class Flags(Query):
    """Simple parameters."""

    size: int = 0
    on: bool = False
    name: str = ""


class Asked(ApiView):
    """Answers its query."""

    word = words.PUBLIC

    @describes(query=Flags)
    def get(self, request: Request) -> HttpResponse:
        return self.answer(self.query(Flags).model_dump())


def worded(*chosen: words.Word) -> Any:
    """A view of these words."""
    return type("Worded", (Worded,), {"word": chosen}).as_view()  # type: ignore[attr-defined]


urlpatterns = [
    path("v1/test/echo/<raw:id>", Echo.as_view()),
    path("v1/test/raw/<tail:path>", Raw.as_view()),
    path("v1/test/numbers", Numbers.as_view()),
    path("v1/test/odd", Numbers.as_view()),
    path("v1/test/asked", Asked.as_view()),
    path("v1/test/fail/<str:cause>", Failing.as_view()),
    *(path(f"v1/test/word/{word.value}", worded(word)) for word in words.Word),
    path("v1/test/word/either", worded(words.SECRET, words.READ)),
    path("v1/agents/test/write", worded(words.WRITE)),
    path("v1/access/test/app", worded(words.APP)),
    *product,
]
