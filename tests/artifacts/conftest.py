"""Every test here has a store of its own, in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from manifests.store import override
from nylorun.blobs import MemoryStore, Store


@pytest.fixture(autouse=True)
def store() -> Iterator[Store]:
    """The store of this test."""
    with override(MemoryStore()) as made:
        yield made
