"""The blob store of this installation: made once per process from ``NYLORUN_BLOBS``, shared by all threads.

Tests put another one in its place with :func:`override`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from nylorun import config
from nylorun.blobs import BlobError, Store, StoreUnavailable, store_for
from nylorun.http.health import AWAY
from nylorun.kernel.errors import ServiceUnavailable

log = logging.getLogger(__name__)


class _Instead:
    """A store that stands in for the configured one."""

    store: Store | None = None


def current_store() -> Store:
    """The store that every blob of this installation is kept in."""
    return _Instead.store or _configured(config.current().blobs)


@contextmanager
def override(store: Store) -> Iterator[Store]:
    """Use ``store`` in every thread of this process while the block runs."""
    before, _Instead.store = _Instead.store, store
    try:
        yield store
    finally:
        _Instead.store = before


@contextmanager
def answering() -> Iterator[None]:
    """Say failures of the store and of this machine's disk in the words of this interface: 503, come back later."""
    try:
        yield
    except (BlobError, OSError) as error:
        raise ServiceUnavailable("Stored content cannot be read or written now. Try again.") from error


def check() -> str | None:
    """Whether the store works, for ``/readyz``: anybody may ask that, so the reason is only logged."""
    try:
        current_store().check()
    except StoreUnavailable as error:
        log.warning("the store of blobs does not work: %s", error)
        return AWAY
    return None


@lru_cache(maxsize=4)
def _configured(url: str) -> Store:
    return store_for(url)
