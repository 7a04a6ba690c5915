"""Whether a Disk version is there, asked before a disk is given up for it."""

from __future__ import annotations

from environments.errors import DiskCopyFailed
from environments.services import versions
from manifests.store import current_store
from nylorun.blobs import BlobDamaged, BlobMissing, Store, StoreUnavailable, blobs
from nylorun.http.waiting import release
from nylorun.kernel.errors import ServiceUnavailable


def require_whole(root: str) -> None:
    """Raise :class:`DiskCopyFailed` when a part of the tree ``root`` is not there, which is noted in its versions.

    Holds no connection while the store is asked.
    """
    release()
    fault = _fault(current_store(), root)
    if fault is not None:
        versions.note_damage(root)
        raise DiskCopyFailed(fault)


def _fault(store: Store, root: str) -> str | None:
    try:
        missing = next((blob for blob, _ in blobs(store, root) if not store.has(blob)), None)
    except (BlobMissing, BlobDamaged) as error:
        return str(error)
    except StoreUnavailable as error:
        raise ServiceUnavailable from error
    return None if missing is None else f"the blob {missing} of this version is missing"
