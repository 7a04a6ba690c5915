"""Every route of the product: it states its word, stands in the document, hides itself and knows its methods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from nylorun.http.handler import OPAQUE, unknown_route
from nylorun.http.view import ApiView
from nylorun.http.words import UNAUTHENTICATED, Word
from tests.support.client import Api

OUTSIDE_V1 = {"healthz", "readyz", "metrics"}
SAMPLES = {"raw": "demo", "tail": "a/b", "str": "demo", "int": "1", "slug": "demo", "uuid": "0" * 32}


def walk(patterns: Any, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            if not route.startswith("admin/"):
                yield from walk(pattern.url_patterns, route)
        elif pattern.callback is not unknown_route:
            yield route, pattern


def routes() -> list[tuple[str, type[ApiView]]]:
    return [(route, pattern.callback.cls) for route, pattern in walk(get_resolver("nylorun.urls").url_patterns)]


def sample(route: str) -> str:
    """A path that matches the route."""
    path = ""
    for piece in route.split("<"):
        name, found, rest = piece.partition(">")
        path += SAMPLES[name.partition(":")[0]] + rest if found else name
    return "/" + path


def documented(route: str) -> str:
    """The route as the document writes it."""
    path = ""
    for piece in route.split("<"):
        name, found, rest = piece.partition(">")
        path += "{" + name.partition(":")[2] + "}" + rest if found else name
    return "/" + path


ROUTES = routes()
EACH = pytest.mark.parametrize(("route", "view"), ROUTES, ids=[route for route, _ in ROUTES])


@EACH
def test_a_route_states_its_word_for_every_method(route: str, view: type[ApiView]) -> None:
    """E-159: no route without a word."""
    assert issubclass(view, ApiView)
    assert view.allowed
    for method in view.allowed:
        assert all(isinstance(word, Word) for word in view.words_of(method))
    assert set(view.words) <= set(view.allowed)


@EACH
def test_a_route_has_no_trailing_slash_and_lies_in_v1(route: str, view: type[ApiView]) -> None:
    """http §1.1: only health and metrics are outside /v1."""
    assert not route.endswith("/")
    assert route.startswith("v1/") or route in OUTSIDE_V1


@EACH
def test_a_route_is_hidden_without_a_credential(route: str, view: type[ApiView], db: Any) -> None:
    """E-170: the opaque 404, whatever the method, unless the route is public."""
    for method in view.allowed:
        if UNAUTHENTICATED.issuperset(view.words_of(method)):
            continue
        answer = Api().request(method, sample(route))
        assert (answer.status, answer.body) == (404, b"" if method == "HEAD" else OPAQUE)
        unknown = Api({"Authorization": "Bearer " + "0" * 64}).request(method, sample(route))
        assert (unknown.status, unknown.body) == (404, b"" if method == "HEAD" else OPAQUE)


@EACH
def test_a_route_refuses_other_methods_with_allow(route: str, view: type[ApiView], db: Any) -> None:
    """E-223: 405 with Allow, before any credential is asked for; OPTIONS is one of the others."""
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} - set(view.allowed):
        answer = Api().request(method, sample(route))
        assert (answer.status, answer.headers["Allow"]) == (405, ", ".join(view.allowed))
    assert ("HEAD" in view.allowed) or ("GET" not in view.allowed)


@pytest.fixture(scope="module")
def document() -> Any:
    return Api().get("/v1/openapi.json").json


@EACH
def test_a_route_is_in_the_document(route: str, view: type[ApiView], document: Any) -> None:
    """E-232: every route and method, its path parameters, its error form and its security."""
    operations = document["paths"][documented(route)]
    expected = {method.lower() for method in view.allowed if method != "HEAD" or "GET" not in view.allowed}
    assert set(operations) == expected
    for method, operation in operations.items():
        public = UNAUTHENTICATED.issuperset(view.words_of(method.upper()))
        assert operation["responses"]["default"] == {"$ref": "#/components/responses/Refused"}
        assert (operation["security"] == [{"credential": []}]) is not public
        named = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
        assert all("{" + name + "}" in documented(route) for name in named)
        assert len(named) == route.count("<")


def test_the_document_is_openapi_3_1_and_refers_to_what_it_holds(document: Any) -> None:
    """E-232: OpenAPI 3.1; no dangling reference, no operation named twice."""
    assert document["openapi"].startswith("3.1.")
    text = json.dumps(document)
    for piece in text.split('"$ref": "#/')[1:]:
        value = document
        for name in piece.split('"')[0].split("/"):
            value = value[name]
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))
    assert document["components"]["securitySchemes"]["credential"]["scheme"] == "bearer"


def test_the_documentation_loads_everything_from_this_server() -> None:
    """E-232: no address of another host in the page, and its assets are there."""
    page = Api().get("/v1/docs")
    text = page.body.decode()
    assert page.headers["Content-Type"].startswith("text/html")
    assert "://" not in text
    assert "'self'" in page.headers["Content-Security-Policy"]
    assets = [piece.split('"')[0] for piece in text.replace('href="', 'src="').split('src="')[1:]]
    assert len(assets) == 3
    for asset in assets:
        assert Api().get(asset).status == 200
