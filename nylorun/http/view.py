"""The door of every route: one order of checks, one form of answers.

A request is checked in this order, and the first fault answers: route and method, protocol, Caller, scope, then (when
the view asks for them) body or query, reach of the ids named, and last the handler itself. Views are thin: they state
their word, read their input through this class and call one service.

It stays an ``APIView``, so that the schema generator sees every route, but none of Django REST framework's content
negotiation, parsers and renderers run: bodies are pydantic models and answers are JSON bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar, TypeVar

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from pydantic import BaseModel
from rest_framework.request import Request
from rest_framework.views import APIView

from nylorun.http import protocol
from nylorun.http.body import BODY_MAX, RawBody, is_at_hand, read_ahead, read_document
from nylorun.http.caller import Caller
from nylorun.http.handler import JSON, answer_for
from nylorun.http.openapi import DoorSchema, description_of
from nylorun.http.paging import Listing
from nylorun.http.paths import decoded, decoded_tail
from nylorun.http.shape import Paging, Query, read_body, read_query
from nylorun.http.waiting import release
from nylorun.http.words import UNAUTHENTICATED, Word
from nylorun.kernel.errors import InvalidRequest, MethodNotAllowed, NotFound
from nylorun.kernel.ids import ID_MAX, is_id

B = TypeVar("B", bound=BaseModel)
Q = TypeVar("Q", bound=Query)
Words = Word | tuple[Word, ...]

JSON_TYPES = ("application/json",)
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


class ApiView(APIView):
    """Base of every view under ``/v1``, of health and of metrics."""

    word: ClassVar[Words]
    """The route's word; several mean that one of them is enough."""
    words: ClassVar[dict[str, Words]] = {}
    """Words of single methods, where they differ; ``HEAD`` has the word of ``GET``."""
    schema = DoorSchema()

    allowed: ClassVar[list[str]] = []
    """Its methods, as ``Allow`` names them."""
    _asked: ClassVar[frozenset[str]] = frozenset()
    """Those of them that read query parameters."""
    _words_by_method: ClassVar[dict[str, tuple[Word, ...]]] = {}

    request: Request

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        has = {method for method in _METHODS if hasattr(cls, method.lower())}
        cls.allowed = [method for method in _METHODS if method in has or (method == "HEAD" and "GET" in has)]
        cls._asked = frozenset(method for method in cls.allowed if description_of(cls, _implemented(method, has)).query)
        cls._words_by_method = {method: cls.words_of(method) for method in cls.allowed}

    @classmethod
    def words_of(cls, method: str) -> tuple[Word, ...]:
        """The words of one method: one of them is enough."""
        words = cls.words.get("GET" if method == "HEAD" and "HEAD" not in cls.words else method) or cls.word
        return words if isinstance(words, tuple) else (words,)

    # --- the order of checks

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Check and answer one request; every exception becomes an answer here."""
        self.args, self.kwargs = args, kwargs
        self.headers: dict[str, str] = {}
        try:
            self._check_door(request)
            self._check_query(request)
            handler = getattr(self, str(request.method).lower())
            response: HttpResponseBase = handler(self.request, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 the translator knows what each one means
            response = answer_for(error, {"request": request, "view": self})
        return response

    def _check_door(self, request: HttpRequest) -> None:
        words = self._words_by_method.get(str(request.method))
        if words is None:
            raise MethodNotAllowed(self.allowed)
        route = request.path_info[1:]
        protocol.check(request.META.get("HTTP_NYLORUN_PROTOCOL"), route)
        if UNAUTHENTICATED.issuperset(words):
            self.request = Request(request)
            return
        read_ahead(request.environ)  # type: ignore[attr-defined]  # WSGIRequest has it
        self.request = Request(request, authenticators=self.get_authenticators())
        self.caller.require(words, route)

    def _check_query(self, request: HttpRequest) -> None:
        asked = request.META.get("QUERY_STRING")
        if asked and request.method not in self._asked and request.path_info.startswith("/v1/"):
            read_query(Query, asked)

    @property
    def caller(self) -> Caller:
        """Who calls; the opaque 404 when nobody does."""
        user = self.request.user
        if not isinstance(user, Caller):
            raise NotFound
        return user

    # --- the path

    def segment(self, name: str) -> str:
        """One decoded segment of the path."""
        return decoded(self.kwargs[name], name)

    def segments(self, name: str) -> list[str]:
        """The decoded segments of a ``tail``; none is empty, ``.`` or ``..``."""
        return decoded_tail(self.kwargs[name], name)

    def environment_id(self, name: str = "id") -> str:
        """The id of an Environment or Agent in the path; the opaque 404 when it is out of the Caller's reach."""
        environment_id = self.segment(name)
        if not is_id(environment_id):
            raise InvalidRequest([{"path": f"{{{name}}}", "message": f"must be an id of 1 to {ID_MAX} characters"}])
        if not self.caller.reaches(environment_id):
            raise NotFound
        return environment_id

    # --- the input

    def body(self, model: type[B], *, limit: int = BODY_MAX, nul: bool = False) -> B:
        """The JSON body as ``model``; ``nul`` allows U+0000 in its texts."""
        _, raw = self.document(JSON_TYPES, limit=limit)
        return read_body(model, raw, nul=nul)

    def document(self, types: tuple[str, ...], *, limit: int = BODY_MAX) -> tuple[str, bytes]:
        """Media type and bytes of a body of one of ``types``; empty counts as the first type."""
        self._release_for_body()
        return read_document(self._environ(), limit, types)

    def raw_body(self, limit: int, name: str = "body") -> RawBody:
        """The body as a stream of at most ``limit`` bytes, of any media type."""
        self._release_for_body()
        return RawBody(self._environ(), limit, name)

    def _release_for_body(self) -> None:
        if not is_at_hand(self._environ()):
            release()  # a body comes at its sender's pace: nobody holds a connection meanwhile

    def query(self, model: type[Q]) -> Q:
        """The query parameters as ``model``."""
        return read_query(model, str(self.request.META.get("QUERY_STRING") or ""))

    def header(self, name: str) -> str | None:
        """A request header by its usual name."""
        value = self.request.META.get("HTTP_" + name.upper().replace("-", "_"))
        return None if value is None else str(value)

    @property
    def request_id(self) -> str:
        """The id of this request, as the answer carries it."""
        return str(self.request._request.request_id)  # type: ignore[attr-defined]

    def _environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = self.request._request.environ  # type: ignore[attr-defined]
        return environ

    # --- the answer

    def answer(self, data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """``data`` as JSON; pydantic models by their wire names."""
        content = to_json(data)
        response = HttpResponse(content, status=status, content_type=JSON)
        response.headers["Content-Length"] = str(len(content))
        response._has_been_logged = True  # type: ignore[attr-defined]  # a stated answer is no event for Django's log
        for name, value in (headers or {}).items():
            response.headers[name] = value
        return response

    def answer_list(
        self,
        member: str,
        listing: Listing[Any],
        query: Paging,
        show: Callable[[Any], Any],
        *,
        beside: Mapping[str, Any] | None = None,
    ) -> HttpResponseBase:
        """``{member: [...], nextCursor}``: one page with a limit, else everything, read and written page by page.

        ``beside`` are further members of the answer, before the list.
        """
        known = dict(beside or {})
        bound = self._bound(query)
        limit, after = listing.window(query.limit, query.cursor, bound)
        if limit is not None:
            rows, cursor = listing.page(limit, after, bound)
            return self.answer({**known, member: [show(row) for row in rows], "nextCursor": cursor})
        pages = listing.pages()
        first, second = next(pages, []), next(pages, None)
        if second is None:
            return self.answer({**known, member: [show(row) for row in first], "nextCursor": None})
        start = to_json({**known, member: [show(row) for row in first]})[:-2]
        return StreamingHttpResponse(_written(start, chain([second], pages), show), content_type=JSON)

    def _bound(self, query: Paging) -> str:
        """What a cursor belongs to: the path and the filters, in one canonical form."""
        filters = query.model_dump(mode="json", by_alias=True, exclude={"limit", "cursor"}, exclude_none=True)
        normal = {name: sorted(value) if isinstance(value, list) else value for name, value in filters.items()}
        return f"{self.request.path_info} {json.dumps(normal, sort_keys=True)}"


def _implemented(method: str, has: set[str]) -> str:
    """The method that answers ``method``: ``GET`` does for ``HEAD``."""
    return method if method in has else "GET"


def to_json(data: Any) -> bytes:
    """The JSON bytes of an answer. Text that cannot be UTF-8 is a bug of the writer and fails here."""
    return _encode(data).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_plain).encode


def _written(start: bytes, rest: Iterable[list[Any]], show: Callable[[Any], Any]) -> Iterator[bytes]:
    """The pieces of one JSON object, a page each: a long list is in memory one page at a time."""
    yield start
    for page in rest:
        shown = b"," + b",".join(to_json(show(row)) for row in page)
        release()  # the next page is read when this one was taken
        yield shown
    yield b'],"nextCursor":null}'
