"""Signing keys: the tokens this installation mints and the only place that verifies them.

* ES256 (RFC 7515, RFC 7518 §3.4) with one active P-256 key; its private half is sealed. The kind of a token is its
  ``typ`` and ``aud``; ``iss`` is ``urn:nylorun:tenant:<TENANT_ID>``.
* :func:`verify` checks in this order: length, header (exactly ``alg``, ``typ`` and a known ``kid``), signature, ``iss``
  and ``aud``, claim grammars, times. A token of another kind never passes, whoever signed it.
* A retired key verifies what it signed while it was active; a revoked one nothing, from the next look on.
* ``now`` is an argument. Public and unsealed private halves are kept per process: a ``kid`` never changes its key.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)
from django.db.models.functions import Now
from django.utils.functional import cached_property
from jwt.algorithms import ECAlgorithm

from nylorun import config
from nylorun.access import keyring
from nylorun.access.models import SigningKey, SigningKeyState

ALGORITHM: Final = "ES256"
TOKEN_MAX = 4096
TOLERANCE = timedelta(seconds=30)
_HEADER = frozenset({"alg", "typ", "kid"})
_TEXTS, _NUMBERS = ("sub", "jti"), ("iat", "exp")


class TokenInvalid(Exception):
    """Not a token of this kind and installation. The reason is for the log only."""


class TokenOver(Exception):
    """A good token whose time is over, or whose key was revoked."""


@dataclass(frozen=True, slots=True)
class TokenKind:
    """What tells one kind of token from the others, and how long after its ``exp`` one still passes."""

    typ: str
    aud: str
    grace: timedelta = TOLERANCE


HOST = TokenKind("nylorun-host+jwt", "nylorun-harness-api")
EGRESS = TokenKind("nylorun-egress+jwt", "nylorun-egress")
CALL = TokenKind("nylorun-call+jwt", "nylorun-engine")
# Made and read by this installation under one clock, that of its database: a link ends when it says.
ARTIFACT = TokenKind("nylorun-artifact+jwt", "nylorun-artifact-links", grace=timedelta(0))


@dataclass
class _Halves:
    """The halves of one key; the private one is opened when something is signed."""

    kid: str
    public: EllipticCurvePublicKey
    sealed: bytes

    @cached_property
    def private(self) -> EllipticCurvePrivateKey:
        """The private half, unsealed once."""
        key = load_der_private_key(keyring.current().open_sealed(self.sealed, _place(self.kid)), None)
        assert isinstance(key, EllipticCurvePrivateKey)  # noqa: S101 only this module seals them
        return key


class _Kept:
    """The halves by ``kid``; rows are never changed in these columns."""

    by_kid: dict[str, _Halves] = {}


def issuer() -> str:
    """``iss`` of every token of this installation."""
    return f"urn:nylorun:tenant:{config.current().tenant_id}"


def mint(kind: TokenKind, subject: str, claims: Mapping[str, Any], *, ttl: timedelta, now: datetime) -> str:
    """A token for ``subject`` with ``claims`` beside the registered ones; reads the active key's row."""
    halves = _active()
    issued = int(now.timestamp())
    registered = {
        "iss": issuer(),
        "aud": kind.aud,
        "sub": subject,
        "iat": issued,
        "exp": issued + int(ttl.total_seconds()),
        "jti": secrets.token_hex(16),
    }
    headers = {"typ": kind.typ, "kid": halves.kid}
    return jwt.encode({**claims, **registered}, halves.private, algorithm=ALGORITHM, headers=headers)


def verify(kind: TokenKind, token: str, *, now: datetime) -> dict[str, Any]:
    """The claims of a good token; raises :class:`TokenInvalid` or :class:`TokenOver`."""
    if len(token) > TOKEN_MAX:
        raise TokenInvalid("too long")
    key = _key_of(token, kind)
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            _halves(key).public,
            algorithms=[ALGORITHM],
            audience=kind.aud,
            issuer=issuer(),
            options={"verify_exp": False, "verify_iat": False, "verify_nbf": False, "strict_aud": True},
        )
    except (jwt.InvalidTokenError, ValueError) as error:
        raise TokenInvalid(type(error).__name__) from error
    _check_claims(claims)
    _check_times(kind, claims, key, now)
    return claims


def jwks() -> dict[str, list[dict[str, Any]]]:
    """The public halves of every key that still verifies (RFC 7517)."""
    keys = SigningKey.objects.exclude(state=SigningKeyState.REVOKED).order_by("created_at", "kid")
    return {"keys": list(keys.values_list("public_jwk", flat=True))}


def _active() -> _Halves:
    key = SigningKey.objects.filter(state=SigningKeyState.ACTIVE).first()
    if key is None:
        _make_first()
        key = SigningKey.objects.get(state=SigningKeyState.ACTIVE)
    return _halves(key)


def _make_first() -> None:
    """Make a key while there is no active one; of several processes that try, one row stays."""
    private = generate(SECP256R1())
    kid = f"k{SigningKey.objects.count() + 1}"
    der = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    sealed = bytes(keyring.current().seal(der, _place(kid)))
    jwk = ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    public = {"kty": "EC", "crv": "P-256", "kid": kid, "use": "sig", "alg": ALGORITHM, "x": jwk["x"], "y": jwk["y"]}
    row = SigningKey(kid=kid, state=SigningKeyState.ACTIVE, public_jwk=public, sealed_private=sealed, created_at=Now())
    SigningKey.objects.bulk_create([row], ignore_conflicts=True)


def _key_of(token: str, kind: TokenKind) -> SigningKey:
    """The row of the key that a token names, after its header proved to be one of ours."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.InvalidTokenError, ValueError) as error:
        raise TokenInvalid("no token") from error
    if set(header) != _HEADER or header["alg"] != ALGORITHM or header["typ"] != kind.typ:
        raise TokenInvalid("another header")
    kid = header["kid"]
    key = SigningKey.objects.filter(kid=kid).first() if isinstance(kid, str) and "\x00" not in kid else None
    if key is None:
        raise TokenInvalid("unknown key")
    return key


def _halves(key: SigningKey) -> _Halves:
    kept = _Kept.by_kid.get(key.kid)
    if kept is None or kept.sealed != bytes(key.sealed_private):
        public = ECAlgorithm.from_jwk(key.public_jwk)
        assert isinstance(public, EllipticCurvePublicKey)  # noqa: S101 only this module writes them
        kept = _Kept.by_kid[key.kid] = _Halves(key.kid, public, bytes(key.sealed_private))
    return kept


def _check_claims(claims: Mapping[str, Any]) -> None:
    if not all(isinstance(claims.get(name), str) and claims[name] for name in _TEXTS):
        raise TokenInvalid("claims")
    if not all(type(claims.get(name)) is int for name in _NUMBERS):
        raise TokenInvalid("times")


def _check_times(kind: TokenKind, claims: Mapping[str, Any], key: SigningKey, now: datetime) -> None:
    moment, tolerance = now.timestamp(), TOLERANCE.total_seconds()
    if claims["iat"] > moment + tolerance or claims["exp"] <= claims["iat"]:
        raise TokenInvalid("from the future")
    if key.state == SigningKeyState.REVOKED or claims["exp"] + kind.grace.total_seconds() <= moment:
        raise TokenOver
    if key.retired_at is not None and claims["iat"] > key.retired_at.timestamp() + tolerance:
        raise TokenOver


def _place(kid: str) -> dict[str, str]:
    return {"table": "access_signing_key", "id": kid}
