"""The bodies that write a Secret: typed ones with their binding, and a value alone for a declared Slot. Pure.

Values are read into types that hide them; a fault of a body never repeats what was sent in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import MISSING, RootModel, SecretStr, model_validator

from nylorun.http.jsonbody import parse_json
from nylorun.http.shape import Misfit, Post, read_body
from nylorun.kernel.errors import InvalidRequest
from vault.bindings import (
    TYPES,
    BearerBinding,
    Header,
    HeadersBinding,
    SecretBinding,
    VariableBinding,
    normal,
)
from vault.values import Value, problems_of_value

_NO_BINDING = {"request_id", "idempotency_key", "value", "headers"}
_COMPARED_WITHOUT = frozenset({"requestId", "idempotencyKey"})


class TextGiven(Post):
    """A body that carries one value."""

    value: SecretStr


class HeadersGiven(Post):
    """A body that carries headers by name."""

    headers: dict[Header, SecretStr]


class ValueBody(Post):
    """The value alone, for a declared Slot: type and binding are the Slot's."""

    value: SecretStr | MISSING = MISSING
    headers: dict[Header, SecretStr] | MISSING = MISSING

    @model_validator(mode="after")
    def _one(self) -> ValueBody:
        if ("value" in self.model_fields_set) == ("headers" in self.model_fields_set):
            raise Misfit([{"path": "", "message": "must hold type, or one of value and headers"}])
        return self


class VariableSecret(VariableBinding, TextGiven):
    """A value the sandbox sees as a variable."""


class HostSecret(SecretBinding, TextGiven):
    """A hidden value, set as one header on requests to some hosts."""


class BearerSecret(BearerBinding, TextGiven):
    """A hidden value, set as ``Authorization: Bearer`` at or below a URL."""


class HeadersSecret(HeadersBinding, HeadersGiven):
    """Hidden headers, set at or below a URL."""


class SecretBody(RootModel[VariableSecret | HostSecret | BearerSecret | HeadersSecret | ValueBody]):
    """``PUT {E}/secrets/{name}``, as the description of the interface shows it; :func:`read_secret` reads it."""


TYPED: Mapping[str, type[Post]] = {
    "environment_variable": VariableSecret,
    "environment_secret": HostSecret,
    "bearer": BearerSecret,
    "headers": HeadersSecret,
}


@dataclass(frozen=True, slots=True)
class Given:
    """A body that was read: ``binding`` in its normal form, or ``None`` when it came without a type.

    ``compared`` is what a repeat with the same idempotency key is compared by. It holds the value: it is for a keyed
    hash, and never kept.
    """

    binding: dict[str, Any] | None
    value: Value
    request_id: str | None
    idempotency_key: str | None
    compared: Value


def read_secret(raw: bytes) -> Given:
    """The body of a Secret write; raises :class:`InvalidRequest` with every problem.

    The bounds of a value that came without a type are its Slot's to say.
    """
    document = parse_json(raw)
    body: Any = read_body(_model_of(document), raw)
    value = _value_of(body)
    binding = None
    if not isinstance(body, ValueBody):
        binding = normal(body.model_dump(by_alias=True, exclude=_NO_BINDING))
        check_value(binding, value)
    compared = {name: member for name, member in document.items() if name not in _COMPARED_WITHOUT}
    return Given(binding, value, body.request_id, body.idempotency_key, Value(compared))


def check_value(binding: Mapping[str, Any], value: Value) -> None:
    """Refuse a value that its type does not take; raises :class:`InvalidRequest`."""
    problems = problems_of_value(binding["type"], value)
    identity = binding.get("identity", {}).get("header", "").lower()
    if not problems and identity in (value.header_names or ()):
        problems = [{"path": "/identity/header", "message": "must be none of the headers of the value"}]
    if problems:
        raise InvalidRequest(problems)


def _model_of(document: Mapping[str, Any]) -> type[Post]:
    if "type" not in document:
        return ValueBody
    type = document["type"]
    model = TYPED.get(type) if isinstance(type, str) else None
    if model is None:
        raise InvalidRequest([{"path": "/type", "message": f"must be {', '.join(TYPES[:-1])} or {TYPES[-1]}"}])
    return model


def _value_of(body: Any) -> Value:
    if "headers" in body.model_fields_set:
        return Value.of_headers({name: text.get_secret_value() for name, text in body.headers.items()})
    return Value.of_text(body.value.get_secret_value())
