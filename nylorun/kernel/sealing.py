"""Envelope encryption: how a value is kept so that only the keyring of this Tenant opens it.

* A keyring is one or more keys of 32 bytes; the first is active and seals, every one opens. ``kek_id`` is the hex
  SHA-256 of a key; what wraps is not the key itself but HKDF-SHA256 of it, bound to the Tenant.
* Each value gets a random data key of its own: AES-256-GCM over the value with the associated data, and AES-256-GCM
  over the data key. Moving a sealed value to another place (other associated data) makes it unreadable.
* Every failure to open is :class:`Unreadable`, with one text; it says nothing about why.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nylorun.kernel.canonical import canonical
from nylorun.kernel.errors import ServiceUnavailable
from nylorun.kernel.keys import KEY_BYTES, checked_keys, read_keys
from nylorun.kernel.keys import KeyringError as KeyringError

_NONCE, _TAG, _KEK_ID = 12, 16, 32
_WRAPPED = _NONCE + KEY_BYTES + _TAG
_FORMAT = b"\x01"
HEAD = len(_FORMAT) + _KEK_ID + _NONCE + _WRAPPED
"""Bytes of a column before the ciphertext: all that a rotation of the keyring needs."""


class Unreadable(ServiceUnavailable):
    """A sealed value could not be opened: another key, another place, or damaged bytes."""

    def __init__(self) -> None:
        super().__init__("The secret could not be read.")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed value in its parts; ``bytes()`` of it is what one column holds."""

    kek_id: str
    nonce: bytes
    wrapped_dek: bytes
    ciphertext: bytes

    def __bytes__(self) -> bytes:
        return _FORMAT + bytes.fromhex(self.kek_id) + self.nonce + self.wrapped_dek + self.ciphertext

    @classmethod
    def parse(cls, blob: bytes) -> Sealed:
        """The parts of ``bytes(sealed)``; raises :class:`Unreadable` for anything else."""
        blob = bytes(blob)
        if len(blob) < HEAD + _TAG:
            raise Unreadable
        head = cls.parse_head(blob[:HEAD])
        return cls(head.kek_id, head.nonce, head.wrapped_dek, blob[HEAD:])

    @classmethod
    def parse_head(cls, head: bytes) -> Sealed:
        """The parts of the first :data:`HEAD` bytes, without a ciphertext; raises :class:`Unreadable`."""
        if len(head) != HEAD or not head.startswith(_FORMAT):
            raise Unreadable
        kek, rest = head[1 : 1 + _KEK_ID], head[1 + _KEK_ID :]
        return cls(kek.hex(), rest[:_NONCE], rest[_NONCE:], b"")


class Keyring:
    """The keys of one process, for one Tenant. It has no readable form: neither ``repr`` nor pickling shows a key."""

    def __init__(self, keys: Iterable[bytes], tenant: str) -> None:
        checked = checked_keys(keys)
        info = f"nylorun/vault/1/{tenant}"
        self._wrapping = {hashlib.sha256(key).hexdigest(): AESGCM(_derived(key, info)) for key in checked}
        self._hashing = [_derived(key, f"nylorun/fingerprint/1/{tenant}") for key in checked]
        self.active: str = next(iter(self._wrapping))
        """The ``kek_id`` that seals."""

    @property
    def kek_ids(self) -> tuple[str, ...]:
        """The ids of all keys, the active one first."""
        return tuple(self._wrapping)

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._wrapping)} keys>"

    def __reduce__(self) -> Any:
        raise TypeError("a keyring stays in its process")

    def seal(self, plaintext: bytes, aad: Mapping[str, Any]) -> Sealed:
        """Seal ``plaintext`` for the place that ``aad`` names."""
        data_key, nonce = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(_NONCE)
        ciphertext = AESGCM(data_key).encrypt(nonce, plaintext, canonical(dict(aad)).encode())
        return Sealed(self.active, nonce, self._wrap(data_key), ciphertext)

    def open_sealed(self, sealed: Sealed | bytes, aad: Mapping[str, Any]) -> bytes:
        """The plaintext; raises :class:`Unreadable`."""
        parts = sealed if isinstance(sealed, Sealed) else Sealed.parse(sealed)
        data_key = self._unwrap(parts)
        try:
            return AESGCM(data_key).decrypt(parts.nonce, parts.ciphertext, canonical(dict(aad)).encode())
        except (InvalidTag, ValueError):
            raise Unreadable from None

    def rewrap(self, sealed: Sealed | bytes) -> Sealed:
        """The same ciphertext with its data key wrapped by the active key; raises :class:`Unreadable`."""
        parts = sealed if isinstance(sealed, Sealed) else Sealed.parse(sealed)
        return Sealed(self.active, parts.nonce, self._wrap(self._unwrap(parts)), parts.ciphertext)

    def fingerprints(self, data: bytes) -> tuple[str, ...]:
        """HMAC-SHA256 of ``data`` under each key, the active first, in hex: nobody without the keyring can guess with
        them what ``data`` was.
        """
        return tuple(hmac.new(key, data, hashlib.sha256).hexdigest() for key in self._hashing)

    def _wrap(self, data_key: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._wrapping[self.active].encrypt(nonce, data_key, None)

    def _unwrap(self, sealed: Sealed) -> bytes:
        wrapping = self._wrapping.get(sealed.kek_id)
        if wrapping is None or len(sealed.wrapped_dek) != _WRAPPED:
            raise Unreadable
        try:
            return wrapping.decrypt(sealed.wrapped_dek[:_NONCE], sealed.wrapped_dek[_NONCE:], None)
        except InvalidTag:
            raise Unreadable from None


def parse_keyring(text: str, tenant: str) -> Keyring:
    """The keyring of a setting, see :func:`read_keys`; raises :class:`KeyringError`."""
    return Keyring(read_keys(text), tenant)


def _derived(key: bytes, info: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info.encode()).derive(key)
