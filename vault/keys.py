"""The only place that seals Secrets and opens them. Nobody outside this application imports it.

* A Secret is sealed for its :class:`Place`: moving the row to another Vault or id, renaming it or editing its type or
  binding makes it unreadable. The plaintext is the canonical JSON of ``{value}`` or ``{headers}``.
* Every failure to open is :class:`~nylorun.kernel.sealing.Unreadable`, one error with one text.
* Both are work of the processor alone; they are done outside transactions all the same, since a plaintext has no place
  in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from nylorun.access import keyring
from nylorun.db.tx import require_no_tx
from nylorun.kernel.sealing import Sealed, Unreadable
from vault.values import Value


@dataclass(frozen=True, slots=True)
class Place:
    """What a Secret's ciphertext belongs to."""

    vault_id: UUID
    secret_id: UUID
    name: str
    type: str
    binding: Mapping[str, Any]

    def aad(self) -> dict[str, Any]:
        """The associated data, as its canonical JSON is written."""
        return {
            "vaultId": str(self.vault_id),
            "credentialId": str(self.secret_id),
            "name": self.name,
            "type": self.type,
            "binding": dict(self.binding),
        }


def seal(place: Place, value: Value) -> Sealed:
    """Seal a value under a new data key."""
    require_no_tx()
    return keyring.current().seal(value.plaintext(), place.aad())


def open_value(place: Place, sealed: Sealed) -> Value:
    """The value; raises :class:`Unreadable`."""
    require_no_tx()
    plaintext = keyring.current().open_sealed(sealed, place.aad())
    try:
        return Value.of_plaintext(plaintext)
    except ValueError:
        raise Unreadable from None


def active_kek() -> str:
    """The id of the key that seals now: a Secret of another one waits for a rotation of the keyring."""
    return keyring.current().active
