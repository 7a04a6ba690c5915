"""Canonical JSON and its hash: two values that mean the same have the same bytes.

Keys are sorted by code point, members without a value (``None``) are dropped, lists keep their order, there are no
spaces, and text is UTF-8 unescaped. NaN and infinities are refused. After RFC 8785 in spirit; numbers are integers
only, so its number rules do not apply.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """The canonical text of ``value``; raises ``ValueError`` for NaN and infinities."""
    return json.dumps(_present(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_hash(value: Any) -> str:
    """``sha256:`` + 64 lower-case hex digits over the canonical UTF-8 bytes."""
    return "sha256:" + hashlib.sha256(canonical(value).encode()).hexdigest()


def same(one: Any, other: Any) -> bool:
    """Whether two values have one canonical form; a missing value equals a missing value only."""
    return canonical(one) == canonical(other)


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _present(member) for key, member in value.items() if member is not None}
    if isinstance(value, list | tuple):
        return [_present(member) for member in value]
    return value
