"""Content rows: who needs which blob, and how many bytes the Tenant keeps.

    claim(holder, blobs)   before a blob is looked for or put: from here on nobody removes it
    release(tx, holders)   in the commit that ends the need: an outbox row promises the rest
    remove(key)            the rest: rows go in batches, bytes are given back, blobs nobody names are noted

A *holder* is the id of whatever writes a tree: an Operation (``op_...``) or an upload (``av_...``). The version that
comes of it names the holder; content rows are never rewritten.

* Every change here is made under the lock ``artifacts.quota``, which is held for one batch at most: of the rows of one
  blob exactly one is ``counted``, and the total is the sum of the counted sizes.
* A blob that is just being removed cannot be claimed: the copy is told to come again (503), so it never relies on
  content that goes. See :mod:`manifests.services.collect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from django.db import connection
from django.db.backends.utils import CursorWrapper

from manifests.models import ArtifactVersion
from nylorun.db.tx import Tx, database_now, transact
from nylorun.http.waiting import release as give_connection_back
from nylorun.kernel.canonical import canonical_hash
from nylorun.kernel.errors import ByteLimitExceeded, ServiceUnavailable
from nylorun.kernel.ids import ulid
from nylorun.record import outbox
from nylorun.tenant.limits import total_bytes
from nylorun.tenant.store import artifact_bytes, change_artifact_bytes, hold_artifact_quota

TOPIC = "content.remove"
BATCH = 1000
REMOVE_BATCH = 10_000
HOLDERS_PER_ROW = 1000
UPLOAD_MAX, UPLOAD_KEEP = timedelta(hours=12), timedelta(hours=24)
"""How long an upload may take, and how long content rows without a version are left alone: far longer."""

_CLAIM = """
WITH wanted AS (
    SELECT DISTINCT ON (blob) blob, size FROM unnest(%s::text[], %s::bigint[]) AS given (blob, size)
), made AS (
    INSERT INTO manifests_content (holder, blob, size, counted)
    SELECT %s, blob, size,
           NOT EXISTS (SELECT 1 FROM manifests_content named WHERE named.blob = wanted.blob AND named.counted)
    FROM wanted
    ON CONFLICT (holder, blob) DO NOTHING
    RETURNING size, counted
), cleared AS (
    DELETE FROM manifests_unnamed WHERE blob IN (SELECT blob FROM wanted) RETURNING going
)
SELECT (SELECT COALESCE(sum(size), 0)::bigint FROM made WHERE counted),
       (SELECT COALESCE(bool_or(going), false) FROM cleared)
"""

_DELETE = """
DELETE FROM manifests_content content
USING (SELECT holder, blob FROM manifests_content WHERE holder = ANY(%s) ORDER BY holder, blob LIMIT %s) doomed
WHERE content.holder = doomed.holder AND content.blob = doomed.blob
RETURNING content.blob, content.size, content.counted
"""
_HAND_ON = """
UPDATE manifests_content content SET counted = true
FROM (SELECT DISTINCT ON (blob) blob, holder FROM manifests_content
      WHERE blob = ANY(%s) AND NOT counted ORDER BY blob, holder) heir
WHERE content.holder = heir.holder AND content.blob = heir.blob
RETURNING content.blob
"""
_NOTE = """
INSERT INTO manifests_unnamed (blob, since, going) SELECT blob, %s, false FROM unnest(%s::text[]) AS freed (blob)
ON CONFLICT (blob) DO UPDATE SET since = EXCLUDED.since WHERE NOT manifests_unnamed.going
"""

# Walks from holder to holder along the primary key: as many steps as there are holders, however many rows they have.
_UNVERSIONED = """
WITH RECURSIVE found (holder) AS (
    (SELECT holder FROM manifests_content WHERE holder > %(low)s AND holder < %(high)s ORDER BY holder LIMIT 1)
    UNION ALL
    SELECT (SELECT next.holder FROM manifests_content next
            WHERE next.holder > found.holder AND next.holder < %(high)s ORDER BY next.holder LIMIT 1)
    FROM found WHERE found.holder IS NOT NULL
)
SELECT holder FROM found
WHERE holder IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM manifests_artifact_version version WHERE version.holder = found.holder)
ORDER BY holder LIMIT %(limit)s
"""


def claim(holder: str, blobs: Sequence[tuple[str, int]]) -> None:
    """Name ``blobs`` (id and raw bytes each) for ``holder``, in short transactions of their own; repeating is harmless.

    Raises :class:`ByteLimitExceeded` when they would pass the Tenant's total, and :class:`ServiceUnavailable` when one
    of them is just being removed; the batch it happens in is not written. The connection is given back at the end.
    """
    try:
        for first in range(0, len(blobs), BATCH):
            batch = blobs[first : first + BATCH]
            transact(partial(_claim, holder=holder, batch=batch))
    finally:
        give_connection_back()


def charge(used: int, added: int) -> None:
    """Add ``added`` to the total, which is ``used`` under the lock the caller holds; raises when it is too much."""
    require_room(used, added)
    change_artifact_bytes(added)


def require_room(used: int, added: int) -> None:
    """Raise :class:`ByteLimitExceeded` when ``added`` bytes do not fit into the Tenant's total."""
    limit = total_bytes()
    if added > 0 and used + added > limit:
        raise ByteLimitExceeded(
            f"All stored content together may have {limit} bytes: delete artifacts or Disk versions, or raise the"
            " limit with PUT /v1/tenant/artifacts.",
            details={"limit": "totalBytes", "limitBytes": limit},
        )


def used_bytes() -> int:
    """The Tenant's byte total at this moment."""
    return artifact_bytes()


def release(tx: Tx, holders: Sequence[str]) -> None:
    """Promise, in the caller's transaction, that the content rows of these holders go: no version names them now."""
    for first in range(0, len(holders), HOLDERS_PER_ROW):
        some = list(holders[first : first + HOLDERS_PER_ROW])
        key = some[0] if len(some) == 1 else canonical_hash(some).removeprefix("sha256:")[:32]
        outbox.post(tx, TOPIC, key, {"key": key, "holders": some})


def remove(key: str) -> None:
    """Keep the promise of one outbox row, then settle it. Repeatable at any point."""
    row = f"{TOPIC}:{key}"
    posts = outbox.posts_of(row)
    remove_rows(outbox.payload_of(row).get("holders", []))
    transact(lambda tx: outbox.settle(tx, row, posts))


def remove_rows(holders: Sequence[str]) -> int:
    """Remove the content rows of these holders, at most ``REMOVE_BATCH`` a commit; returns how many there were.

    A holder that a version names keeps its rows.
    """
    total = 0
    while holders:
        gone = transact(lambda tx: _remove(tx, holders))
        total += gone
        if gone < REMOVE_BATCH:
            break
    return total


def unversioned(prefix: str, before: datetime, limit: int = 100) -> list[str]:
    """Holders ``<prefix>_<ulid>`` drawn before this time that have content rows and made no version.

    The caller knows that nothing of theirs runs any more.
    """
    bounds: dict[str, str | int] = {"low": f"{prefix}_", "high": ulid(prefix, before, bytes), "limit": limit}
    with connection.cursor() as cursor:
        cursor.execute(_UNVERSIONED, bounds)
        return [holder for (holder,) in cursor.fetchall()]


def is_stale(holder: str, now: datetime) -> bool:
    """Whether an upload began too long ago to become a version: its rows may be going already."""
    return holder < ulid("av", now - UPLOAD_MAX, bytes)


def release_stale_uploads() -> int:
    """Promise the removal of what uploads that died left; returns how many there were."""
    holders = unversioned("av", database_now() - UPLOAD_KEEP)
    if holders:
        transact(lambda tx: release(tx, holders))
    return len(holders)


def _claim(tx: Tx, holder: str, batch: Sequence[tuple[str, int]]) -> None:
    used = hold_artifact_quota(tx)
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, [[blob for blob, _ in batch], [size for _, size in batch], holder])
        added, going = cursor.fetchone()
    if going:
        raise ServiceUnavailable("Content that is needed again is just being removed. Try again.")
    charge(used, added)


def _remove(tx: Tx, holders: Sequence[str]) -> int:
    hold_artifact_quota(tx)
    kept = set(ArtifactVersion.objects.filter(holder__in=holders).values_list("holder", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(_DELETE, [[holder for holder in holders if holder not in kept], REMOVE_BATCH])
        gone = cursor.fetchall()
        freed = {blob: size for blob, size, counted in gone if counted}
        if freed:
            _free(tx, cursor, freed)
    return len(gone)


def _free(tx: Tx, cursor: CursorWrapper, freed: dict[str, int]) -> None:
    """Counted rows are gone: each hands its mark on; the last of a blob gives its bytes back and begins its day."""
    cursor.execute(_HAND_ON, [list(freed)])
    for (blob,) in cursor.fetchall():
        del freed[blob]
    cursor.execute(_NOTE, [tx.now(), list(freed)])
    change_artifact_bytes(-sum(freed.values()))
