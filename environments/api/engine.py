"""Where pods' Engines reach the control plane: join and renew. Every refusal is one opaque 401."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from environments.api.metrics import WAKE_SECONDS
from environments.api.shapes import JoinBody
from environments.api.views import Joined as JoinedView
from environments.compute.contract import NoAnswer
from environments.errors import JoinRefused
from environments.services.join import Join, Joined, check_join, join, renew
from environments.tools.machines import driver_status
from nylorun.access import signing
from nylorun.access.signing import TokenInvalid, TokenKind, TokenOver
from nylorun.db.tx import database_now
from nylorun.http.openapi import describes
from nylorun.http.view import ApiView
from nylorun.http.words import ENGINE
from nylorun.kernel.errors import ServiceUnavailable

HOST_TOKEN_TTL = timedelta(minutes=15)


class JoinView(ApiView):
    """A pod's Engine starts."""

    word = ENGINE

    @describes(body=JoinBody, answers={200: JoinedView}, summary="A pod's Engine joins")
    def post(self, request: Request) -> HttpResponse:
        """Check, ask the Driver, then decide under the row's lock."""
        body = self.body(JoinBody)
        wanted = Join(body.environment_id, body.pod_uid, body.join_token, body.volume_id, body.address)
        name = check_join(wanted)
        try:
            status = driver_status(name)
        except NoAnswer as error:
            raise ServiceUnavailable("The Driver does not answer. Join again.") from error
        joined = join(wanted, status)
        if joined.waited is not None:
            WAKE_SECONDS.observe(joined.waited)
        return self.answer(_answer(joined))


class RenewView(ApiView):
    """A pod's Engine is still there."""

    word = ENGINE

    @describes(answers={200: JoinedView}, summary="A pod's Engine renews its tokens")
    def post(self, request: Request) -> HttpResponse:
        """New tokens of the same epoch."""
        bearer = (self.header("Authorization") or "").removeprefix("Bearer ")
        try:
            claims = signing.verify(signing.HOST, bearer, now=database_now())
        except (TokenInvalid, TokenOver) as error:
            raise JoinRefused from error
        joined = renew(str(claims["sub"]), epoch=int(claims["epc"]), pod_uid=str(claims["pod"]))
        return self.answer(_answer(joined))


def _answer(joined: Joined) -> dict[str, Any]:
    claims = {"epc": joined.epoch, "pod": joined.pod_uid}
    now = database_now()

    def token(kind: TokenKind) -> str:
        return signing.mint(kind, joined.environment_id, claims, ttl=HOST_TOKEN_TTL, now=now)

    return {
        "hostToken": token(signing.HOST),
        "egressToken": token(signing.EGRESS),
        "epoch": joined.epoch,
        "expiresIn": int(HOST_TOKEN_TTL.total_seconds()),
        "jwks": signing.jwks(),
    }
