"""``ETag`` of a view and ``If-Match`` of a request (RFC 9110 §8.8.3, §13.1.1).

A tag is strong: it is the hash of what it stands for, so equal views have equal tags in every process. Weak tags never
match; ``*`` matches everything that exists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nylorun.kernel.canonical import canonical_hash
from nylorun.kernel.errors import InvalidRequest, PreconditionFailed

_TAG = r'(?:W/)?"[\x21\x23-\x7e]*"'
_LIST = re.compile(rf"\s*{_TAG}(?:\s*,\s*{_TAG})*\s*")
_ONE = re.compile(_TAG)


def etag_of(members: Mapping[str, Any]) -> str:
    """The tag of these members, quotes included."""
    return f'"{canonical_hash(members).removeprefix("sha256:")[:32]}"'


def check_if_match(header: str | None, etag: str | None) -> None:
    """Raise :class:`PreconditionFailed` unless ``header`` (``If-Match``, or ``None``) names ``etag``.

    ``etag`` is ``None`` when there is no row: nothing matches then, not even ``*``.
    """
    if header is None:
        return
    if header.strip() == "*":
        matches = etag is not None
    elif _LIST.fullmatch(header):
        matches = etag in _ONE.findall(header)
    else:
        raise InvalidRequest([{"path": "If-Match:", "message": "must be an ETag in double quotes"}])
    if not matches:
        details = {} if etag is None else {"etag": etag}
        raise PreconditionFailed("It has changed since it was read. Read it again, then decide.", details=details)
