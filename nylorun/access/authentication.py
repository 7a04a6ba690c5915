"""The caller check: one credential, one query, one Caller.

* A missing, malformed or unknown credential is the opaque 404; the reason is only logged.
* An application key is looked up by its SHA-256: what is compared is a digest nobody can steer, so the time of the
  look-up tells nothing about a key.
* The look is the first one of a request: a connection that died in the pool is put away here and another one taken.
* A revoked key is 401 ``token_expired``; an application key with an ``Origin`` header is 403 ``origin_rejected``.
"""

from __future__ import annotations

import hashlib
import logging
import re

from django.db import OperationalError, connection
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from nylorun import config
from nylorun.access.caller import Caller, application_caller
from nylorun.access.errors import OriginRejected, TokenExpired
from nylorun.kernel.errors import NotFound, ServiceUnavailable

log = logging.getLogger(__name__)

_BEARER = re.compile(r"Bearer ([0-9a-f]{64})")
_FIND = "SELECT id, revoked_at IS NOT NULL FROM access_principal WHERE token_hash = %s"


def key_hash(key: str) -> bytes:
    """What is stored of an application key."""
    return hashlib.sha256(key.encode()).digest()


class CallerAuthentication(BaseAuthentication):
    """Django REST framework's hook: ``request.user`` is the Caller."""

    def authenticate(self, request: Request) -> tuple[Caller, None]:
        """The Caller of this request; raises the refusal that answers it otherwise."""
        headers = request.META
        match = _BEARER.fullmatch(headers.get("HTTP_AUTHORIZATION", ""))
        if match is None:
            log.info("no usable credential: %s", "malformed" if "HTTP_AUTHORIZATION" in headers else "missing")
            raise NotFound
        principal_id, revoked = _principal(match[1])
        if revoked:
            raise TokenExpired
        if "HTTP_ORIGIN" in headers:
            raise OriginRejected
        subject, scopes = headers.get("HTTP_NYLORUN_SUBJECT"), headers.get("HTTP_NYLORUN_SCOPES")
        return application_caller(principal_id, subject, scopes), None


def _principal(key: str) -> tuple[str, bool]:
    row = _found(key_hash(key))
    if row is None:
        log.info("no usable credential: unknown key")
        raise NotFound
    return str(row[0]), bool(row[1])


def _found(digest: bytes) -> tuple[str, bool] | None:
    """The row, over the first connection that lives: after a restart of the database every pooled one is dead."""
    for _ in range(config.current().pool_size + 1):
        try:
            return _look(digest)
        except OperationalError:
            if connection.connection is None or not connection.connection.closed:
                raise
            connection.close()
    raise ServiceUnavailable


def _look(digest: bytes) -> tuple[str, bool] | None:
    """One query, without the cost of building it: this runs in every request."""
    with connection.cursor() as cursor:
        cursor.execute(_FIND, [digest])
        row: tuple[str, bool] | None = cursor.fetchone()
    return row
