"""Names: the grammars of ids and labels, and how new ones are drawn.

* Environment and Session ids: 1..200 characters of ``ID``; the same grammar everywhere an id is taken.
* ``xx_`` + 26 characters are lower-case Crockford ULIDs (https://github.com/ulid/spec): sortable by creation time.
* Pod names are valid DNS labels and collision-free for all practical purposes (80 bits of SHA-256).
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import uuid
from collections.abc import Callable
from datetime import datetime

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*")
ID_MAX = 200
LABEL_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"[\x20-\x7e]{0,256}")
LABELS_MAX = 32
SUBJECT = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,198}[\x21-\x7e])?")
RESERVED_SUBJECTS = frozenset({"host", "installation"})
OPERATION_ID = re.compile(r"op_[0-9a-hjkmnp-tv-z]{26}")
POD_NAME = re.compile(r"sbx-[a-z2-7]{16}-g[0-9]{1,6}")

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def is_id(text: str) -> bool:
    """Whether ``text`` can be the id of an Environment, an Agent or a Session."""
    return len(text) <= ID_MAX and ID.fullmatch(text) is not None


def is_subject(text: str) -> bool:
    """Whether ``text`` can name a person; the reserved words cannot."""
    return SUBJECT.fullmatch(text) is not None and text not in RESERVED_SUBJECTS


def ulid(prefix: str, now: datetime, randomness: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """``<prefix>_`` + 26 characters: 48 bits of milliseconds, then 80 random bits."""
    value = int(now.timestamp() * 1000) << 80 | int.from_bytes(randomness(10), "big")
    return f"{prefix}_" + "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def new_uid() -> uuid.UUID:
    """A UUID that was never used before: the identity of one row, one pod, one event."""
    return uuid.uuid4()


def pod_name(tenant: str, environment_id: str, generation: int) -> str:
    """The Sandbox object's name of one volume generation: ``sbx-<16 base32 characters>-g<generation>``."""
    digest = hashlib.sha256(f"{tenant}/{environment_id}".encode()).digest()
    return f"sbx-{base64.b32encode(digest).decode().lower()[:16]}-g{generation}"
