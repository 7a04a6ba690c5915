"""``GET /v1/me`` and ``GET /v1/access/jwks``."""

from __future__ import annotations

from typing import Literal

from django.http import HttpResponse
from pydantic import BaseModel, ConfigDict
from rest_framework.request import Request

from nylorun.access import signing
from nylorun.http import protocol
from nylorun.http.caller import SCOPES
from nylorun.http.openapi import describes
from nylorun.http.view import ApiView
from nylorun.http.words import ANY, PUBLIC


class ProtocolOffer(BaseModel):
    """The served range of the protocol, and what this installation can do."""

    min: int
    max: int
    features: list[str]


class Me(BaseModel):
    """What the Caller is to this installation; ``subject`` only when it acts for a person."""

    subject: str | None = None
    scopes: list[str]
    agents: Literal["*"] | list[str]
    via: Literal["application", "application-subject", "token", "publishable"]
    protocol: ProtocolOffer


class Jwk(BaseModel):
    """One public key (RFC 7517)."""

    model_config = ConfigDict(extra="forbid")

    kty: Literal["EC"]
    crv: Literal["P-256"]
    kid: str
    use: Literal["sig"]
    alg: Literal["ES256"]
    x: str
    y: str


class Jwks(BaseModel):
    """The keys that verify tokens of this installation."""

    keys: list[Jwk]


class MeView(ApiView):
    """Subject, scopes, and the protocol spoken here."""

    word = ANY

    @describes(answers={200: Me}, summary="Who calls")
    def get(self, request: Request) -> HttpResponse:
        """Who calls."""
        caller = self.caller
        return self.answer(
            Me(
                subject=caller.subject,
                scopes=[scope for scope in SCOPES if scope in caller.scopes],
                agents="*",
                via="application-subject" if caller.for_person else "application",
                protocol=ProtocolOffer(**protocol.offer()),
            )
        )


class JwksView(ApiView):
    """Public keys: active and retired ones."""

    word = PUBLIC

    @describes(answers={200: Jwks}, summary="The public keys that verify tokens")
    def get(self, request: Request) -> HttpResponse:
        """The set."""
        return self.answer(signing.jwks())
