"""The keys that a keyring's text holds. Loads no cryptography, so that the launcher can check the setting too."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from pathlib import Path

KEY_BYTES = 32
FILE = "file:"


class KeyringError(Exception):
    """The keyring's text is no keyring; the message never shows a key."""


def read_keys(text: str) -> list[bytes]:
    """The keys of a setting: base64 separated by commas or white space, or ``file:<path>`` of such a text."""
    if text.startswith(FILE):
        text = _content(Path(text.removeprefix(FILE)))
    return checked_keys(_key(word) for word in text.replace(",", " ").split())


def checked_keys(keys: Iterable[bytes]) -> list[bytes]:
    """The keys as a list: at least one, each of :data:`KEY_BYTES`; raises :class:`KeyringError`."""
    found = list(keys)
    if not found:
        raise KeyringError("The keyring holds no key.")
    for key in found:
        if len(key) != KEY_BYTES:
            raise KeyringError(f"Each key of the keyring has {KEY_BYTES} bytes; one has {len(key)}.")
    return found


def _content(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise KeyringError(f"The keyring file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise KeyringError(f"The keyring file {path} holds no text.") from None


def _key(word: str) -> bytes:
    try:
        return base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        raise KeyringError(f"Each key of the keyring is base64 of {KEY_BYTES} bytes.") from None
