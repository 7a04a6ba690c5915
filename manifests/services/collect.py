"""The collector: removes blobs that no content row has named for a day, and can be stopped at any step.

    note     a blob that nothing names gets a row ``Unnamed``: at the removal of its content rows, or found by a listing
    mark     after ``BLOB_GRACE``, looked at again under the lock ``artifacts.quota``: the row is ``going``
    delete   outside any transaction, the objects; then the rows

* A copy names its blobs before it looks for them (:func:`manifests.services.content.claim`), under the same lock: that
  takes a note away, and is refused while the blob is going. So a copy never finds a blob that is removed afterwards.
* A collector that died leaves rows that are going; another one takes them over after ``TAKEOVER``. A living one deletes
  nothing any more ``DELETE_SECONDS`` after its mark, long before that, so a late collector removes nothing that was
  put again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, TypeVar

from django.db import connection

from nylorun.blobs import Store, StoredBlob
from nylorun.db.tx import Tx, transact
from nylorun.http.waiting import release
from nylorun.kernel.clock import monotonic
from nylorun.tenant.store import hold_artifact_quota

log = logging.getLogger(__name__)

T = TypeVar("T")

BLOB_GRACE = timedelta(hours=24)
TAKEOVER = timedelta(minutes=10)
DELETE_SECONDS = 60.0
BATCH = 100
LIST_BATCH = 1000

_NOTE = """
INSERT INTO manifests_unnamed (blob, since, going)
SELECT blob, %s, false FROM unnest(%s::text[]) AS given (blob)
WHERE NOT EXISTS (SELECT 1 FROM manifests_content named WHERE named.blob = given.blob AND named.counted)
ON CONFLICT (blob) DO NOTHING
"""
_MARK = """
WITH due AS (
    SELECT blob, going FROM manifests_unnamed
    WHERE since <= CASE WHEN going THEN %(now)s - %(takeover)s ELSE %(now)s - %(grace)s END
    ORDER BY since, blob LIMIT %(limit)s
), named AS (
    SELECT blob FROM due
    WHERE NOT going
      AND EXISTS (SELECT 1 FROM manifests_content named WHERE named.blob = due.blob AND named.counted)
), cleared AS (
    DELETE FROM manifests_unnamed USING named WHERE manifests_unnamed.blob = named.blob
)
UPDATE manifests_unnamed SET going = true, since = %(now)s
FROM due
WHERE manifests_unnamed.blob = due.blob AND due.blob NOT IN (SELECT blob FROM named)
RETURNING manifests_unnamed.blob
"""
_FORGET = "DELETE FROM manifests_unnamed WHERE blob = ANY(%s) AND going AND since = %s"


@dataclass(frozen=True, slots=True)
class Collected:
    """What one pass did: ``noted`` blobs that nothing names, and ``removed`` ones."""

    noted: int
    removed: int


@dataclass(frozen=True, slots=True)
class _Marked:
    blobs: tuple[str, ...]
    at: datetime


def collect(store: Store, *, grace: timedelta = BLOB_GRACE, seconds: float = float("inf")) -> Collected:
    """Note what nothing names, then remove what is due, for about ``seconds``; the whole store is listed."""
    began = monotonic()
    noted = note_strays(store)
    return Collected(noted, collect_due(store, grace=grace, seconds=seconds - (monotonic() - began)))


def collect_due(store: Store, *, grace: timedelta = BLOB_GRACE, seconds: float = float("inf")) -> int:
    """Remove the blobs that were noted for ``grace``, batch after batch for about ``seconds``; returns how many.

    Raises ``StoreUnavailable``; what was marked then is taken over later.
    """
    deadline = monotonic() + seconds
    removed = 0
    while monotonic() < deadline:
        # Read before the mark: time that passes while the commit returns shortens what is left for deleting.
        until = monotonic() + DELETE_SECONDS
        marked = transact(partial(_mark, grace=grace))
        removed += _delete(store, marked, until)
        if len(marked.blobs) < BATCH:
            break
    if removed:
        log.info("removed %d blobs that nothing named", removed)
    return removed


def note_strays(store: Store) -> int:
    """Note every blob of the store that no content row names; returns how many are new."""
    return sum(_noted(store))


def _noted(store: Store) -> Iterator[int]:
    return (transact(partial(_note, blobs=[blob.key for blob in some])) for some in _listed(store))


class Strays:
    """:func:`note_strays` in pieces, by one process: a listing every ``period``, the first at once.

    A listing goes on where the piece before stopped. A failing one begins again with the next piece, so does one of
    a process that died; noting a blob twice is harmless.
    """

    def __init__(self, period: timedelta) -> None:
        self._period = period.total_seconds()
        self._one_at_a_time = Lock()
        self._listing: Iterator[int] | None = None
        self._due_at = float("-inf")

    def note(self, store: Store, *, seconds: float) -> int:
        """Go on for about ``seconds``; returns how many were new. Raises ``StoreUnavailable``.

        Does nothing while no listing is due or another thread is at it.
        """
        if not self._one_at_a_time.acquire(blocking=False):
            return 0
        try:
            return self._go_on(store, monotonic() + seconds)
        finally:
            self._one_at_a_time.release()

    def _go_on(self, store: Store, until: float) -> int:
        if self._listing is None and monotonic() < self._due_at:
            return 0
        listing, self._listing, found = self._listing or _noted(store), None, 0
        for noted in listing:
            found += noted
            if monotonic() >= until:
                self._listing = listing
                return found
        self._due_at = monotonic() + self._period
        return found


def _listed(store: Store) -> Iterator[list[StoredBlob]]:
    for some in batches(store.list(), LIST_BATCH):
        yield some
        release()


def _note(tx: Tx, *, blobs: Sequence[str]) -> int:
    hold_artifact_quota(tx)
    with connection.cursor() as cursor:
        cursor.execute(_NOTE, [tx.now(), list(blobs)])
        return int(cursor.rowcount)


def _mark(tx: Tx, *, grace: timedelta) -> _Marked:
    hold_artifact_quota(tx)
    now = tx.now()
    values: dict[str, Any] = {"now": now, "takeover": TAKEOVER, "grace": grace, "limit": BATCH}
    with connection.cursor() as cursor:
        cursor.execute(_MARK, values)
        return _Marked(tuple(blob for (blob,) in cursor.fetchall()), now)


def _delete(store: Store, marked: _Marked, until: float) -> int:
    release()
    done: list[str] = []
    try:
        for blob in marked.blobs:
            if monotonic() > until:
                break
            store.delete(blob)
            done.append(blob)
    finally:
        if done:
            transact(partial(_forget, blobs=done, at=marked.at))
    return len(done)


def _forget(tx: Tx, *, blobs: Sequence[str], at: datetime) -> None:
    hold_artifact_quota(tx)
    with connection.cursor() as cursor:
        cursor.execute(_FORGET, [list(blobs), at])


def batches(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """``rows`` in lists of at most ``size``."""
    source = iter(rows)
    while some := list(islice(source, size)):
        yield some
