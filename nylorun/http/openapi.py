"""What a view method takes and gives: stated once with :func:`describes`, read by the schema generator and the door.

Word, path parameters, the error form and the security scheme come from the view itself, so a route is in the document
even when nobody described it. Models are named once for the whole document (:mod:`nylorun.http.docs`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, TypeVar

from drf_spectacular.openapi import AutoSchema
from pydantic import BaseModel

from nylorun.http.words import ENGINE, UNAUTHENTICATED, Word

F = TypeVar("F", bound=Callable[..., Any])
Mode = Literal["validation", "serialization"]
Answer = type[BaseModel] | str | dict[str, Any]
"""A model, the media type of an answer that is no JSON, or a JSON Schema."""

_PARAMETER = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True)
class Description:
    """What one method takes and gives."""

    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answers: Mapping[int, Answer] = field(default_factory=dict)
    summary: str = ""
    body_types: tuple[str, ...] = ("application/json",)

    def models(self) -> Iterator[tuple[type[BaseModel], Mode]]:
        """Every model it names, with the side it is read from."""
        for model in (self.body, self.query):
            if model is not None:
                yield model, "validation"
        for answer in self.answers.values():
            if isinstance(answer, type):
                yield answer, "serialization"


def describes(
    *,
    body: type[BaseModel] | None = None,
    query: type[BaseModel] | None = None,
    answers: Mapping[int, Answer] | None = None,
    summary: str = "",
    body_types: tuple[str, ...] = ("application/json",),
) -> Callable[[F], F]:
    """State what a view method takes and gives; the door refuses all query parameters of a method without ``query``."""

    def mark(method: F) -> F:
        method.described = Description(body, query, answers or {}, summary, body_types)  # type: ignore[attr-defined]
        return method

    return mark


def description_of(view: Any, method: str) -> Description:
    """What the view's method was described with."""
    described: Description = getattr(getattr(view, method.lower()), "described", Description())
    return described


class DoorSchema(AutoSchema):
    """One operation of the document, from an :class:`~nylorun.http.view.ApiView` and its description."""

    def get_operation(
        self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any
    ) -> dict[str, Any] | None:
        """The operation object of ``method`` on ``path``."""
        described = description_of(self.view, method)
        view: Any = self.view
        words: tuple[Word, ...] = view.words_of(method)
        operation: dict[str, Any] = {
            "operationId": _operation_id(method, path),
            "summary": described.summary or _first_line(getattr(self.view, method.lower()).__doc__),
            "tags": [_tag(path)],
            "parameters": [*_path_parameters(path), *self._query_parameters(described)],
            "responses": self._responses(described, words),
            "security": _security(words),
            "x-word": [word.value for word in words],
        }
        if described.body is not None:
            content = {"schema": self._ref(described.body, "validation")}
            operation["requestBody"] = {"content": dict.fromkeys(described.body_types, content)}
        elif described.body_types != ("application/json",):
            raw = {"schema": {"type": "string", "format": "binary"}}
            operation["requestBody"] = {"content": dict.fromkeys(described.body_types, raw)}
        return operation

    def _ref(self, model: type[BaseModel], mode: Mode) -> dict[str, Any]:
        view: Any = self.view
        ref: dict[str, Any] = view.document_refs[model, mode]
        return ref

    def _query_parameters(self, described: Description) -> Iterator[dict[str, Any]]:
        if described.query is None:
            return
        schema = described.query.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
        for name, member in schema.get("properties", {}).items():
            required = name in schema.get("required", ())
            yield {"in": "query", "name": name, "required": required, "schema": member}

    def _responses(self, described: Description, words: tuple[Word, ...]) -> dict[str, Any]:
        answers = {str(status): self._response(status, answer) for status, answer in described.answers.items()}
        error = {"$ref": "#/components/responses/Refused"}
        if not answers:
            answers["200"] = {"description": "Success", "content": {"application/json": {"schema": {}}}}
        if not UNAUTHENTICATED.issuperset(words):
            answers.setdefault("404", {"$ref": "#/components/responses/NotFound"})
        return {**answers, "default": error}

    def _response(self, status: int, answer: Answer) -> dict[str, Any]:
        if isinstance(answer, str):
            content = {answer: {"schema": {"type": "string"}}}
        elif isinstance(answer, dict):
            content = {"application/json": {"schema": answer}}
        else:
            content = {"application/json": {"schema": self._ref(answer, "serialization")}}
        return {"description": HTTPStatus(status).phrase, "content": content}


def _security(words: tuple[Word, ...]) -> list[dict[str, list[str]]]:
    if ENGINE in words:
        return [{"engineToken": []}]
    return [] if UNAUTHENTICATED.issuperset(words) else [{"credential": []}]


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(path):
        yield {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}


def _operation_id(method: str, path: str) -> str:
    words = _WORD.findall(path.removeprefix("/v1"))
    return method.lower() + "".join(word[:1].upper() + word[1:] for word in words)


def _tag(path: str) -> str:
    segments = path.strip("/").split("/")
    return segments[1].partition(".")[0] if segments[0] == "v1" and len(segments) > 1 else "installation"


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
