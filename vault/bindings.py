"""What a Secret is bound to: its type, where its value goes, and which Secrets cannot stand side by side. Pure.

* A **binding** is type and target of a Secret without its value; a **Slot** is a binding that a Manifest declares, with
  ``required`` and ``description``. Both are kept in one normal form (:func:`normal`): hosts lower-cased, unique and
  sorted, members equal to their default left out. Two that mean the same are thus equal as canonical JSON.
* :data:`Binding` and :data:`Slot` are the strict shapes, told apart by ``type``.
* Names: :data:`NAME` for every Secret, :func:`variable_problem` for one that becomes a variable.
* :func:`clash` decides between two Secrets of one Environment. For type ``headers`` the names come with the value, so a
  Slot of it is judged by what is known of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import MISSING, AfterValidator, Field, model_validator

from nylorun.http.shape import Misfit, Shape
from vault.hosts import EXACT, exact_host
from vault.urls import URL_MAX, below, host_and_path, origin_url, via_url

TYPES: Final = ("environment_variable", "environment_secret", "bearer", "headers")
HIDDEN: Final = frozenset({"environment_secret", "bearer", "headers"})
"""Types whose value never enters a sandbox: the egress gate sets it on the wire."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
DEFAULT_INJECT: Final = {"header": "Authorization", "format": "Bearer {value}"}

_RESERVED = frozenset({
    "PATH", "HOME", "USER", "SHELL", "PWD", "IFS", "ENV", "BASH_ENV", "LD_PRELOAD", "LD_LIBRARY_PATH", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
})  # fmt: skip
_RESERVED_IN_ANY_CASE = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
_CONNECTION_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_BASE64 = re.compile(r"\{base64:(?:[^{}]|\{value\})*\}")
_ONLY_OF_A_SLOT = frozenset({"required", "description"})


def header_name(text: str) -> str:
    """``text``, when a Secret may set this header; raises ``ValueError``."""
    if HEADER.fullmatch(text) is None:
        raise ValueError("must be a header name")
    if text.lower() in _CONNECTION_HEADERS or text.lower().startswith("proxy-"):
        raise ValueError("must not be a header of the connection itself")
    return text


def header_format(text: str) -> str:
    """``text``, when it shows where the value goes; raises ``ValueError``."""
    if any(character in text for character in "\r\n\0"):
        raise ValueError("must not hold line breaks")
    if text.count("{value}") != 1:
        raise ValueError("must hold {value} exactly once")
    groups = text.count("{base64:")
    if groups > 1 or groups != len(_BASE64.findall(text)):
        raise ValueError("may hold one closed {base64:...} group")
    return text


def in_order(hosts: list[str]) -> list[str]:
    """The normal form of a list of hosts."""
    return sorted(set(hosts))


SecretName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Host = Annotated[str, AfterValidator(exact_host), Field(json_schema_extra={"pattern": EXACT})]
Header = Annotated[str, AfterValidator(header_name), Field(json_schema_extra={"pattern": f"^{HEADER.pattern}$"})]
Format = Annotated[str, Field(max_length=200), AfterValidator(header_format)]
OriginUrl = Annotated[str, Field(max_length=URL_MAX), AfterValidator(origin_url)]
ViaUrl = Annotated[str, Field(max_length=URL_MAX), AfterValidator(via_url)]
Hosts = Annotated[list[Host], Field(min_length=1, max_length=20), AfterValidator(in_order)]


class Inject(Shape):
    """How an ``environment_secret`` is written into a request. Absent: ``Authorization: Bearer <value>``."""

    header: Header
    format: Format


class Identity(Shape):
    """The header that carries the Subject of the Session's owner."""

    header: Header


class VariableBinding(Shape):
    """A value the sandbox sees as a variable."""

    type: Literal["environment_variable"]


class SecretBinding(Shape):
    """A hidden value, set as one header on requests to these hosts."""

    type: Literal["environment_secret"]
    allowed_hosts: Hosts
    inject: Inject | MISSING = MISSING


class UrlBinding(Shape):
    """What the two types bound to a URL share."""

    url: OriginUrl
    via: ViaUrl | MISSING = MISSING
    identity: Identity | MISSING = MISSING


class BearerBinding(UrlBinding):
    """A hidden value, set as ``Authorization: Bearer`` on requests at or below a URL."""

    type: Literal["bearer"]

    @model_validator(mode="after")
    def _each_header_once(self) -> Self:
        if isinstance(self.identity, Identity) and self.identity.header.lower() == "authorization":
            raise Misfit([{"path": "/identity/header", "message": "must not be Authorization, which holds the value"}])
        return self


class HeadersBinding(UrlBinding):
    """Hidden values, set as the headers they are named by on requests at or below a URL."""

    type: Literal["headers"]


class Declared(Shape):
    """What only a Slot has."""

    required: bool | MISSING = MISSING
    description: Annotated[str, Field(max_length=500)] | MISSING = MISSING


class VariableSlot(VariableBinding, Declared):
    """A declared ``environment_variable``."""


class SecretSlot(SecretBinding, Declared):
    """A declared ``environment_secret``."""


class BearerSlot(BearerBinding, Declared):
    """A declared ``bearer``."""


class HeadersSlot(HeadersBinding, Declared):
    """A declared ``headers``."""


Binding = Annotated[VariableBinding | SecretBinding | BearerBinding | HeadersBinding, Field(discriminator="type")]
Slot = Annotated[VariableSlot | SecretSlot | BearerSlot | HeadersSlot, Field(discriminator="type")]


def normal(members: Mapping[str, Any]) -> dict[str, Any]:
    """The normal form of a dumped binding or Slot."""
    kept = dict(members)
    if kept.get("inject") == DEFAULT_INJECT:
        del kept["inject"]
    if kept.get("required") is False:
        del kept["required"]
    return kept


def binding_of(slot: Mapping[str, Any]) -> dict[str, Any]:
    """The binding of a Slot: what a typed Secret write must equal."""
    return {name: member for name, member in slot.items() if name not in _ONLY_OF_A_SLOT}


def hosts_of(binding: Mapping[str, Any]) -> list[str]:
    """The hosts whose requests this binding touches."""
    if "url" in binding:
        return [host_and_path(binding["url"])[0]]
    return list(binding.get("allowedHosts", ()))


def name_problem(name: str, type: str) -> str | None:
    """Why a Secret of this type cannot have this name, or ``None``."""
    if NAME.fullmatch(name) is None:
        return "is not a Secret name"
    return variable_problem(name) if type == "environment_variable" else None


def variable_problem(name: str) -> str | None:
    """Why a variable cannot have this name, or ``None``."""
    if VARIABLE.fullmatch(name) is None:
        return "is not a variable name"
    if name.startswith("NYLORUN_") or name in _RESERVED or name.upper() in _RESERVED_IN_ANY_CASE:
        return "is a reserved variable"
    return None


@dataclass(frozen=True, slots=True)
class Bound:
    """A Secret or Slot as far as clashes go; ``header_names`` are those of a ``headers`` value, when known."""

    name: str
    type: str
    binding: Mapping[str, Any]
    header_names: tuple[str, ...] = ()

    def headers(self) -> frozenset[str]:
        """The headers it sets, lower-cased."""
        names = list(self.header_names)
        if self.type == "environment_secret":
            names.append(self.binding.get("inject", DEFAULT_INJECT)["header"])
        if self.type == "bearer":
            names.append("Authorization")
        if "identity" in self.binding:
            names.append(self.binding["identity"]["header"])
        return frozenset(name.lower() for name in names)


def clash(one: Bound, other: Bound) -> bool:
    """Whether two Secrets of one Environment would stand in each other's place on some request."""
    if not {one.type, other.type} <= HIDDEN or not set(hosts_of(one.binding)) & set(hosts_of(other.binding)):
        return False
    if one.type == other.type == "environment_secret":
        return True
    return bool(one.headers() & other.headers()) and _paths_meet(one.binding, other.binding)


def clash_with(one: Bound, others: Iterable[Bound]) -> str | None:
    """The first name, by code point, among ``others`` that clashes with ``one``."""
    return min((other.name for other in others if other.name != one.name and clash(one, other)), default=None)


def _paths_meet(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if "url" not in one or "url" not in other:
        return True
    return below(one["url"], other["url"]) or below(other["url"], one["url"])
