"""Sealed rows: the written format for ever, public vectors, and every tampering fails alike."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from nylorun.access import keyring
from nylorun.kernel import sealing
from nylorun.kernel.errors import ServiceUnavailable
from nylorun.kernel.sealing import Keyring, Sealed, Unreadable
from tests.support.client import Api
from tests.vault.conftest import ONE, TWO, Use
from tests.vault.helpers import PLAIN, VARIABLE, opened, put, secret
from vault import keys
from vault.models import Secret
from vault.values import Value

VECTORS = Path(__file__).parent / "vectors"
SEALED: dict[str, Any] = json.loads((VECTORS / "sealed_secrets.json").read_text())
NIST: list[dict[str, Any]] = json.loads((VECTORS / "nist_gcm256.json").read_text())["vectors"]


@pytest.mark.parametrize("kept", SEALED["rows"], ids=lambda kept: kept["type"])
def test_rows_sealed_long_ago_still_open(use: Use, kept: dict[str, Any]) -> None:
    """E-69: fixed bytes; a change of format, derivation or associated data breaks this."""
    use(TWO, ONE, tenant="tenant-1")
    place = keys.Place(
        UUID(SEALED["vaultId"]), UUID(SEALED["secretId"]), kept["name"], kept["type"], kept["binding"]
    )  # fmt: skip
    parts = (bytes.fromhex(kept[name]) for name in ("nonce", "wrappedDek", "ciphertext"))
    assert keys.open_value(place, Sealed(kept["kekId"], *parts)).plaintext().decode() == kept["plaintext"]


class _Bytes:
    """Stands for canonical text, with the associated data of a vector."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def encode(self) -> bytes:
        return self._data


@pytest.mark.parametrize("vector", NIST, ids=range(len(NIST)))
def test_public_vectors_pass_through_seal_and_open(monkeypatch: pytest.MonkeyPatch, vector: dict[str, Any]) -> None:
    """E-69: AES-256-GCM as NIST writes it (CAVP), with the tag appended; what must fail fails."""
    key, nonce, aad, sealed = (bytes.fromhex(vector[name]) for name in ("key", "nonce", "aad", "sealed"))
    monkeypatch.setattr(sealing, "canonical", lambda _: _Bytes(aad))
    ring = Keyring([ONE], "t")
    wrapped = ring.seal(b"", {}).wrapped_dek
    randoms = iter([key, nonce, b"n" * 12])
    monkeypatch.setattr(secrets, "token_bytes", lambda size: next(randoms))
    plaintext = bytes.fromhex(vector["plaintext"] or "")
    made = ring.seal(plaintext, {})
    if vector["plaintext"] is None:
        with pytest.raises(Unreadable):
            ring.open_sealed(Sealed(ring.active, nonce, made.wrapped_dek, sealed), {})
        return
    assert (made.nonce, made.ciphertext) == (nonce, sealed)
    assert ring.open_sealed(made, {}) == plaintext
    with pytest.raises(Unreadable):
        ring.open_sealed(Sealed(ring.active, nonce, wrapped, sealed), {})


def _swap_rows(demo: Api) -> None:
    one, other = Secret.objects.get(name="NAME"), Secret.objects.get(name="OTHER")
    one.sealed, other.sealed = other.sealed, one.sealed
    one.save()
    other.save()


def _change(**columns: Any) -> Callable[[Api], None]:
    def change(demo: Api) -> None:
        Secret.objects.filter(name="NAME").update(**columns)

    return change


def _cut(column: str, size: int) -> Callable[[Api], None]:
    def cut(demo: Api) -> None:
        row = Secret.objects.get(name="NAME")
        Secret.objects.filter(pk=row.pk).update(**{column: bytes(getattr(row, column))[:size]})

    return cut


def _flip(column: str) -> Callable[[Api], None]:
    def flip(demo: Api) -> None:
        row = Secret.objects.get(name="NAME")
        data = bytearray(getattr(row, column))
        data[len(data) // 2] ^= 1
        Secret.objects.filter(pk=row.pk).update(**{column: bytes(data)})

    return flip


def _move(demo: Api) -> None:
    """The row of another Environment, put into this Vault under the name."""
    demo.put("/v1/environments/other", {"kind": "none"})
    put(demo, "NAME", VARIABLE, id="other")
    moved = Secret.objects.exclude(vault=secret("NAME").vault).get(name="NAME")
    vault = secret("NAME").vault
    Secret.objects.filter(vault=vault, name="NAME").delete()
    Secret.objects.filter(pk=moved.pk).update(vault=vault)


TAMPERINGS: dict[str, Callable[[Api], None]] = {
    "two rows swapped": _swap_rows,
    "row of another Vault": _move,
    "another id": _change(id=uuid4()),
    "name changed": _change(name="RENAMED"),
    "binding edited": _change(binding={"type": "environment_variable", "x": 1}),
    "nonce": _flip("nonce"),
    "wrapped key": _flip("wrapped_dek"),
    "ciphertext": _flip("ciphertext"),
    "truncated": _cut("ciphertext", 17),
    "another key named": _change(kek_id="0" * 64),
}


@pytest.mark.parametrize("tampering", TAMPERINGS.values(), ids=TAMPERINGS)
def test_every_tampering_fails_alike(demo: Api, tampering: Callable[[Api], None]) -> None:
    """E-69: one error with one text, a 503; nothing of the value in it."""
    put(demo, "NAME", VARIABLE)
    put(demo, "OTHER", {**VARIABLE, "value": "other"})
    tampering(demo)
    with pytest.raises(Unreadable) as failed:
        opened()
    assert (str(failed.value), failed.value.status) == ("The secret could not be read.", 503)
    assert isinstance(failed.value, ServiceUnavailable)
    assert failed.value.__cause__ is None


def test_a_changed_type_fails_alike(demo: Api) -> None:
    """E-69: the type is part of the place."""
    put(demo, "NAME", VARIABLE)
    kept = secret()
    place = keys.Place(kept.vault_id, kept.id, kept.name, "bearer", kept.binding)
    with pytest.raises(Unreadable):
        keys.open_value(place, kept.sealed)


@pytest.mark.parametrize(("ring", "tenant"), [((TWO,), None), ((ONE,), "other")], ids=["another key", "another Tenant"])
def test_another_keyring_or_tenant_opens_nothing(demo: Api, use: Use, ring: tuple[bytes, ...], tenant: Any) -> None:
    """E-69: both are part of the wrapping."""
    use(ONE)
    put(demo, "NAME", VARIABLE)
    assert opened() == {"NAME": PLAIN}
    use(*ring, tenant=tenant)
    with pytest.raises(Unreadable):
        opened()


def test_a_plaintext_that_is_no_json_fails_alike(demo: Api) -> None:
    """E-69: even one that was sealed for this very place."""
    put(demo, "NAME", VARIABLE)
    kept = secret()
    kept.sealed = keyring.current().seal(b"not json", kept.place.aad())
    with pytest.raises(Unreadable):
        keys.open_value(kept.place, kept.sealed)


def test_nothing_is_sealed_or_opened_inside_a_transaction(demo: Api) -> None:
    """E-73: a plaintext is never in a transaction's data."""
    from nylorun.db.tx import TransactionOpen, transact

    put(demo, "NAME", VARIABLE)
    kept = secret()
    for act in (
        lambda: keys.open_value(kept.place, kept.sealed),
        lambda: keys.seal(kept.place, Value.of_text("x")),
    ):
        with pytest.raises(TransactionOpen):
            transact(lambda tx, act=act: act())  # type: ignore[misc]
