"""Tokens this installation signs: what is minted verifies, and nothing else does."""

from __future__ import annotations

import base64
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from django.db import connection
from django.db.models import F

from nylorun.access import keyring, signing
from nylorun.access.keyring import canary_fault
from nylorun.access.models import KeyringCanary, SigningKey
from nylorun.access.signing import ARTIFACT, CALL, EGRESS, HOST, TokenInvalid, TokenKind, TokenOver, mint, verify
from nylorun.kernel.sealing import Keyring
from tests.support.client import Api

pytestmark = pytest.mark.django_db

NOW = datetime(2030, 1, 1, 10, tzinfo=UTC)
TTL = timedelta(minutes=5)


@pytest.fixture(autouse=True)
def fresh_keys() -> None:
    signing._Kept.by_kid.clear()


def token(kind: TokenKind = HOST, now: datetime = NOW, **claims: Any) -> str:
    return mint(kind, "team-a/x", {"epc": 3, "pod": "u-1", **claims}, ttl=TTL, now=now)


def part(data: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


def signed(claims: dict[str, Any], headers: dict[str, Any]) -> str:
    """A token signed with the installation's own key, with any claims and headers."""
    token()
    private = signing._active().private
    return jwt.encode(claims, private, algorithm="ES256", headers={"kid": "k1", "typ": HOST.typ, **headers})


def good_claims(**other: Any) -> dict[str, Any]:
    times = {"iat": int(NOW.timestamp()), "exp": int((NOW + TTL).timestamp())}
    return {"iss": signing.issuer(), "aud": HOST.aud, "sub": "x", "jti": "j", **times, **other}


@pytest.mark.parametrize("kind", [HOST, EGRESS, CALL])
def test_a_minted_token_verifies_as_its_own_kind_only(kind: TokenKind) -> None:
    """E-168: one key signs every kind of token, told apart by typ and aud."""
    minted = token(kind)
    claims = verify(kind, minted, now=NOW)
    assert claims["iss"] == "urn:nylorun:tenant:local"
    assert (claims["aud"], claims["sub"], claims["epc"], claims["pod"]) == (kind.aud, "team-a/x", 3, "u-1")
    assert claims["exp"] - claims["iat"] == 300
    assert jwt.get_unverified_header(minted) == {"alg": "ES256", "kid": "k1", "typ": kind.typ}
    for other in {HOST, EGRESS, CALL} - {kind}:
        with pytest.raises(TokenInvalid):
            verify(other, minted, now=NOW)


def test_no_two_tokens_have_one_name() -> None:
    """E-168: jti is drawn for each."""
    assert len({verify(HOST, token(), now=NOW)["jti"] for _ in range(3)}) == 3


def test_times_are_kept_with_a_tolerance() -> None:
    """E-168: TOKEN_TOLERANCE of 30 s on both ends."""
    minted = token()
    verify(HOST, minted, now=NOW + TTL + timedelta(seconds=29))
    verify(HOST, minted, now=NOW - timedelta(seconds=29))
    with pytest.raises(TokenOver):
        verify(HOST, minted, now=NOW + TTL + timedelta(seconds=30))
    with pytest.raises(TokenInvalid):
        verify(HOST, minted, now=NOW - timedelta(seconds=31))


def test_a_link_is_over_when_it_says() -> None:
    """E-198: no tolerance on its end; a clock set back a little does no harm."""
    minted = token(ARTIFACT)
    verify(ARTIFACT, minted, now=NOW - timedelta(seconds=29))
    verify(ARTIFACT, minted, now=NOW + TTL - timedelta(microseconds=1))
    with pytest.raises(TokenOver):
        verify(ARTIFACT, minted, now=NOW + TTL)


@pytest.mark.parametrize(
    "headers",
    [
        {"kid": "k2"},
        {"kid": None},
        {"kid": 1},
        {"kid": "k\x00"},
        {"typ": "JWT"},
        {"typ": None},
        {"jku": "https://x"},
        {"jwk": {}},
        {"x5u": "x"},
        {"x5c": []},
        {"x5t": "x"},
        {"crit": ["exp"]},
        {"b64": False},
    ],
)
def test_another_header_is_refused_before_the_signature(
    headers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-168: alg, typ and a known kid, and nothing else in the header."""
    header, claims, signature = signed(good_claims(), {}).split(".")
    changed = json.loads(base64.urlsafe_b64decode(header + "==")) | headers
    monkeypatch.setattr(jwt, "decode", lambda *args, **kwargs: pytest.fail("the signature was looked at"))
    with pytest.raises(TokenInvalid):
        verify(HOST, f"{part(changed)}.{claims}.{signature}", now=NOW)


def test_another_algorithm_is_refused() -> None:
    """E-168: neither none nor a MAC with the public key passes."""
    token()
    public = json.dumps(SigningKey.objects.get().public_jwk).encode()
    for algorithm in ("none", "HS256", "ES384", "es256"):
        message = f"{part({'alg': algorithm, 'kid': 'k1', 'typ': HOST.typ})}.{part(good_claims())}"
        mac = base64.urlsafe_b64encode(hmac.digest(public, message.encode(), "sha256")).decode().rstrip("=")
        for signature in ("", mac):
            with pytest.raises(TokenInvalid):
                verify(HOST, f"{message}.{signature}", now=NOW)


def test_a_foreign_or_changed_signature_is_refused() -> None:
    """E-168: the claims are read after the signature held."""
    header, claims, signature = token().split(".")
    stranger = ec.generate_private_key(ec.SECP256R1())
    forged = jwt.encode(good_claims(), stranger, algorithm="ES256", headers={"kid": "k1", "typ": HOST.typ})
    richer = part(good_claims(sub="team-b/y"))
    candidates = [
        forged,
        f"{header}.{richer}.{signature}",
        f"{header}.{claims}.",
        f"{header}.{claims}",
        "",
        "a.b.c",
        "é",
    ]
    for candidate in candidates:
        with pytest.raises(TokenInvalid):
            verify(HOST, candidate, now=NOW)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "urn:nylorun:tenant:other"},
        {"iss": None},
        {"aud": CALL.aud},
        {"aud": [HOST.aud]},
        {"sub": ""},
        {"sub": None},
        {"jti": ""},
        {"iat": True},
        {"iat": "1"},
        {"exp": None},
        {"exp": 1.5},
        {"exp": int(NOW.timestamp())},
    ],
)
def test_other_claims_are_refused(claims: dict[str, Any]) -> None:
    """E-168: iss, aud, and the grammar of each claim."""
    wrong = {name: value for name, value in good_claims(**claims).items() if value is not None}
    with pytest.raises(TokenInvalid):
        verify(HOST, signed(wrong, {}), now=NOW)
    assert verify(HOST, signed(good_claims(), {}), now=NOW)["sub"] == "x"


def test_a_token_is_at_most_4_kib() -> None:
    """E-168: the length is looked at first."""
    with pytest.raises(TokenInvalid):
        verify(HOST, token(pad="x" * 4096), now=NOW)


def test_a_retired_key_verifies_what_it_signed_and_a_revoked_one_nothing() -> None:
    """E-273: rotation keeps running tokens, revocation ends them at once."""
    minted = token()
    retired_at = NOW + timedelta(minutes=1)
    SigningKey.objects.update(state="retired", retired_at=retired_at)
    assert token(now=NOW) != minted
    assert [row.state for row in SigningKey.objects.order_by("kid")] == ["retired", "active"]
    assert verify(HOST, minted, now=NOW + timedelta(minutes=2))
    late = signed(good_claims(iat=int((NOW + timedelta(minutes=2)).timestamp())), {"kid": "k2"})
    _, claims, signature = late.split(".")
    with pytest.raises(TokenInvalid):
        verify(HOST, f"{part({'alg': 'ES256', 'kid': 'k1', 'typ': HOST.typ})}.{claims}.{signature}", now=NOW)
    SigningKey.objects.filter(kid="k1").update(state="revoked")
    with pytest.raises(TokenOver):
        verify(HOST, minted, now=NOW)


def test_the_public_halves_are_served() -> None:
    """E-273: active and retired keys without their private half, to anybody."""
    token()
    SigningKey.objects.update(state="retired", retired_at=NOW)
    token()
    SigningKey.objects.filter(kid="k2").update(state="revoked")
    token()
    keys = Api().get("/v1/access/jwks").json["keys"]
    assert [key["kid"] for key in keys] == ["k1", "k3"]
    for key in keys:
        assert set(key) == {"kty", "crv", "kid", "use", "alg", "x", "y"}
    verifier = jwt.PyJWK(keys[1]).key
    assert jwt.decode(
        token(), verifier, algorithms=["ES256"], audience=HOST.aud, options={"verify_exp": False, "verify_iat": False}
    )


def test_the_private_half_is_sealed_for_its_row() -> None:
    """E-293: a private half moved to another row, or another Tenant's, is unreadable."""
    token()
    row = SigningKey.objects.get()
    assert b"PRIVATE" not in bytes(row.sealed_private)
    signing._Kept.by_kid.clear()
    SigningKey.objects.update(kid="k9")
    with pytest.raises(Exception, match="The secret could not be read"):
        token()


def test_the_canary_tells_another_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-69: a keyring or Tenant that is not this database's is found out."""
    with connection.cursor() as cursor:
        assert canary_fault(cursor) is None
        first = bytes(KeyringCanary.objects.get().sealed)
        assert canary_fault(cursor) is None
        assert bytes(KeyringCanary.objects.get().sealed) == first
        for stranger in (Keyring([b"x" * 32], "local"), Keyring([b"0123456789abcdef0123456789abcdef"], "other")):
            monkeypatch.setattr(keyring, "current", lambda stranger=stranger: stranger)
            assert canary_fault(cursor) == "cannot open the canary: another keyring or TENANT_ID"
        grown = Keyring([b"x" * 32, b"0123456789abcdef0123456789abcdef"], "local")
        monkeypatch.setattr(keyring, "current", lambda: grown)
        assert canary_fault(cursor) is None
        KeyringCanary.objects.update(sealed=b"short", created_at=F("created_at"))
        assert canary_fault(cursor) is not None
