"""A store of each test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from manifests.store import override
from nylorun.blobs import MemoryStore


@pytest.fixture(autouse=True)
def store() -> Iterator[MemoryStore]:
    """Blobs that go with the test."""
    kept = MemoryStore()
    with override(kept):
        yield kept
