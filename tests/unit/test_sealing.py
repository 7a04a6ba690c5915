"""Envelope sealing: what the format is, and that nothing but the right key, place and Tenant opens it."""

from __future__ import annotations

import base64
import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from nylorun.kernel.errors import ServiceUnavailable
from nylorun.kernel.sealing import Keyring, KeyringError, Sealed, Unreadable, parse_keyring

ONE, TWO = b"1" * 32, b"2" * 32
PLACE: dict[str, Any] = {"table": "t", "id": "1"}
RING = Keyring([ONE], "local")


def test_the_format_is_the_written_one() -> None:
    """E-69: kekId, HKDF wrapping key, 60 bytes of wrapped data key, AES-256-GCM with the tag appended."""
    sealed = RING.seal(b"value", PLACE)
    assert sealed.kek_id == hashlib.sha256(ONE).hexdigest() == RING.active
    assert (len(sealed.nonce), len(sealed.wrapped_dek), len(sealed.ciphertext)) == (12, 60, 5 + 16)
    wrapping = HKDF(algorithm=SHA256(), length=32, salt=b"", info=b"nylorun/vault/1/local").derive(ONE)
    data_key = AESGCM(wrapping).decrypt(sealed.wrapped_dek[:12], sealed.wrapped_dek[12:], None)
    assert AESGCM(data_key).decrypt(sealed.nonce, sealed.ciphertext, b'{"id":"1","table":"t"}') == b"value"
    assert Sealed.parse(bytes(sealed)) == sealed


@given(st.binary(max_size=200))
def test_what_is_sealed_opens(plaintext: bytes) -> None:
    """E-69: any bytes, through the one blob of a column."""
    assert RING.open_sealed(bytes(RING.seal(plaintext, PLACE)), PLACE) == plaintext


def test_every_write_has_keys_and_nonces_of_its_own() -> None:
    """E-69: per write a random data key and nonce."""
    blobs = [RING.seal(b"value", PLACE) for _ in range(20)]
    assert len({sealed.nonce for sealed in blobs}) == len({sealed.wrapped_dek for sealed in blobs}) == 20


@pytest.mark.parametrize(
    "ring", [Keyring([TWO], "local"), Keyring([ONE], "other")], ids=["another key", "another Tenant"]
)
def test_another_keyring_opens_nothing(ring: Keyring) -> None:
    """E-69: key and Tenant are part of the wrapping."""
    with pytest.raises(Unreadable):
        ring.open_sealed(RING.seal(b"value", PLACE), PLACE)


def test_a_moved_value_is_unreadable() -> None:
    """E-69: the associated data is the place."""
    sealed = RING.seal(b"value", PLACE)
    for place in ({"table": "t", "id": "2"}, {"table": "t"}, {}):
        with pytest.raises(Unreadable):
            RING.open_sealed(sealed, place)


def test_every_changed_or_missing_byte_is_unreadable() -> None:
    """E-69: every failure is one error with one text, which is a 503."""
    blob = bytes(RING.seal(b"value", PLACE))
    broken = [blob[:n] for n in range(len(blob))]
    broken += [blob[:n] + bytes([blob[n] ^ 1]) + blob[n + 1 :] for n in range(len(blob))]
    broken += [blob + b"x", b"", b"\x01" * 200]
    texts = set()
    for candidate in broken:
        with pytest.raises(Unreadable) as failed:
            RING.open_sealed(candidate, PLACE)
        assert isinstance(failed.value, ServiceUnavailable)
        texts.add(str(failed.value))
    assert texts == {"The secret could not be read."}


def test_a_second_key_still_opens_and_rewrapping_keeps_the_ciphertext() -> None:
    """E-273: the first key is active; rotation wraps the data key again and leaves the ciphertext."""
    both = Keyring([TWO, ONE], "local")
    old = RING.seal(b"value", PLACE)
    assert both.open_sealed(old, PLACE) == b"value"
    new = both.rewrap(bytes(old))
    assert (new.kek_id, new.ciphertext, new.nonce) == (hashlib.sha256(TWO).hexdigest(), old.ciphertext, old.nonce)
    assert Keyring([TWO], "local").open_sealed(new, PLACE) == b"value"
    assert both.kek_ids == (new.kek_id, old.kek_id)


def test_a_keyring_is_read_from_text_or_a_file(tmp_path: Path) -> None:
    """E-69: base64 keys separated by commas or lines."""
    one, two = base64.b64encode(ONE).decode(), base64.b64encode(TWO).decode()
    (tmp_path / "ring").write_text(f"{one}\n{two}\n")
    for text in (f"{one},{two}", f" {one} , {two} ", f"file:{tmp_path / 'ring'}"):
        assert parse_keyring(text, "local").kek_ids == Keyring([ONE, TWO], "local").kek_ids


@pytest.mark.parametrize("text", ["", ",", "x", "!!!!", base64.b64encode(b"1" * 31).decode(), "file:/nowhere", "é"])
def test_what_is_no_keyring_is_refused_without_showing_it(text: str) -> None:
    """E-69: no keyring, no process; the message holds no key."""
    with pytest.raises(KeyringError) as failed:
        parse_keyring(text, "local")
    assert len(text) < 10 or text.startswith("file:") or text not in str(failed.value)


def test_a_keyring_shows_no_key() -> None:
    """E-69: neither repr nor pickle."""
    assert "1111" not in repr(RING)
    with pytest.raises(TypeError):
        pickle.dumps(RING)
