"""Definition files: content the Tenant holds by its hash, for input files of Manifests.

The content is on the disk before its row is written, so a row means that the content is there; content without a row is
never looked at. Sending held content again reads nothing and changes nothing. Every file counts against the Tenant's
byte total. Lock: ``artifacts.quota``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from manifests import content
from manifests.models import DefinitionFile
from manifests.services.content import charge, require_room
from nylorun.db.tx import Tx, transact
from nylorun.tenant.store import artifact_bytes, hold_artifact_quota

DEFINITION_FILE_MAX = 10 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """A definition file, and whether this request made it."""

    sha256: str
    size: int
    created: bool


def keep_file(sha256: str, chunks: Callable[[], Iterable[bytes]]) -> Kept:
    """Hold the content under its hash. ``chunks`` is called only when it is not held yet."""
    held = held_file(sha256)
    if held is not None:
        return held
    # Looked at once more under the lock; this look keeps content that does not fit from staying on the disk.
    size = content.write(sha256, chunks(), lambda size: require_room(artifact_bytes(), size))

    def work(tx: Tx) -> bool:
        used = hold_artifact_quota(tx)
        if DefinitionFile.objects.filter(pk=sha256).exists():
            return False
        charge(used, size)
        DefinitionFile(sha256=sha256, size=size, created_at=tx.now()).save(force_insert=True)
        return True

    return Kept(sha256, size, created=transact(work))


def held_file(sha256: str) -> Kept | None:
    """The definition file when row and content are there."""
    row = DefinitionFile.objects.filter(pk=sha256).first()
    if row is None or not content.is_held(sha256, row.size):
        return None
    return Kept(sha256, row.size, created=False)
