"""Lists: opt-in paging with a cursor that is opaque, bound and worthless to anybody else.

* A cursor holds the position of the last row shown, under an HMAC that also covers the Tenant, the path and the
  normalised filters. A malformed one, or one of another list, is 400 ``invalid_request`` at ``?cursor``.
* A cursor without a limit means 50 rows; without both the whole list is read in pages of 200.
* Unreachable rows are left out and pages are filled from the reachable ones.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.conf import settings

from nylorun import config
from nylorun.kernel.errors import InvalidRequest

R = TypeVar("R")
Position = Sequence[str | int]

PAGE = 200
CURSOR_ALONE = 50
_MAC = 16


@dataclass(frozen=True)
class Listing(Generic[R]):
    """A list that can be read on from any of its rows.

    ``read(after, count)`` returns up to ``count`` rows behind the position ``after`` (``None``: from the start), in the
    list's order; ``position`` names a row's place in that order; ``keep`` leaves rows out that the Caller may not see.
    """

    read: Callable[[Position | None, int], Sequence[R]]
    position: Callable[[R], Position]
    keep: Callable[[R], bool] | None = None

    def window(self, limit: int | None, cursor: str | None, bound: str) -> tuple[int | None, Position | None]:
        """How many rows, and behind which position; no limit means everything."""
        if cursor is None:
            return limit, None
        return limit or CURSOR_ALONE, open_cursor(cursor, bound)

    def page(self, limit: int, after: Position | None, bound: str) -> tuple[list[R], str | None]:
        """``limit`` rows, and the cursor of the next page when there is one."""
        rows: list[R] = []
        for found in self.pages(after, min(PAGE, limit + 1)):
            rows += found
            if len(rows) > limit:
                return rows[:limit], seal_cursor(self.position(rows[limit - 1]), bound)
        return rows, None

    def pages(self, after: Position | None = None, size: int = PAGE) -> Iterator[list[R]]:
        """The rest of the list in pages that are not empty."""
        while True:
            found = self.read(after, size)
            kept = [row for row in found if self.keep is None or self.keep(row)]
            if kept:
                yield kept
            if len(found) < size:
                return
            after = self.position(found[-1])


def seal_cursor(position: Position, bound: str) -> str:
    """The cursor of ``position`` in the list that ``bound`` names."""
    place = json.dumps(list(position), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_mac(place, bound) + place).decode().rstrip("=")


def open_cursor(cursor: str, bound: str) -> Position:
    """The position a cursor holds; raises :class:`InvalidRequest` for one this list did not give."""
    try:
        sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _unknown_cursor() from None
    mac, place = sealed[:_MAC], sealed[_MAC:]
    if not hmac.compare_digest(mac, _mac(place, bound)):
        raise _unknown_cursor()
    position: list[str | int] = json.loads(place)
    return position


def _mac(place: bytes, bound: str) -> bytes:
    message = json.dumps([config.current().tenant_id, bound]).encode() + b"\0" + place
    return hmac.digest(settings.SECRET_KEY.encode(), message, hashlib.sha256)[:_MAC]


def _unknown_cursor() -> InvalidRequest:
    return InvalidRequest([{"path": "?cursor", "message": "must be a cursor of this list and these filters"}])
