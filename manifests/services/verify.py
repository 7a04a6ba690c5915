"""Whether everything a version needs is there, whole, and named; and how much is stored.

Both read outside any transaction and may run while the installation works: a version that is deleted meanwhile is no
problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count, Sum

from manifests.models import ArtifactVersion, Content, Unnamed
from nylorun.blobs import BlobDamaged, BlobMissing, Store, blobs, read_blob
from nylorun.http.waiting import release
from nylorun.tenant.store import artifact_bytes

PAGE = 100


@dataclass(frozen=True, slots=True)
class Stats:
    """Sizes in bytes: ``stored`` as the store keeps them (compressed), ``raw`` before that, each content once."""

    stored_blobs: int
    stored: int
    named_blobs: int
    raw: int
    versions: int
    unnamed: int
    total: int


class Verification:
    """One look at every version: iterate it once for its problems; the counters are right afterwards.

    What it found is noted in the version, so that the next copy of the same disk stores it anew.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._whole: set[bytes] = set()
        self.versions = 0
        self.blobs = 0

    def __iter__(self) -> Iterator[str]:
        """One line for each fault of a version. Each blob is read once, however many versions need it.

        Raises ``StoreUnavailable`` when the store does not answer: that is no verdict.
        """
        for version in _versions():
            self.versions += 1
            faults = list(self._faults(version))
            if bool(faults) != version.damaged:
                ArtifactVersion.objects.filter(pk=version.pk, root=version.root).update(damaged=bool(faults))
            if faults and ArtifactVersion.objects.filter(pk=version.pk).exists():
                yield from (f"{version.artifact_id} version {version.number}: {fault}" for fault in faults)
            release()

    def _faults(self, version: ArtifactVersion) -> Iterator[str]:
        named = set(Content.objects.filter(holder=version.holder).values_list("blob", flat=True))
        release()
        try:
            for blob, size in blobs(self._store, version.root):
                if blob not in named:
                    yield f"blob {blob} is needed and no content row names it"
                yield from self._fault_of(blob, size)
        except (BlobMissing, BlobDamaged) as fault:
            yield f"its tree cannot be read: {fault}"

    def _fault_of(self, blob: str, size: int) -> Iterator[str]:
        key = bytes.fromhex(blob)
        if key in self._whole:
            return
        try:
            read_blob(self._store, blob, size)
        except (BlobMissing, BlobDamaged) as fault:
            yield str(fault)
        else:
            self._whole.add(key)
            self.blobs += 1


def stats(store: Store) -> Stats:
    """Count what is stored; lists the whole store."""
    stored_blobs = stored = 0
    for blob in store.list():
        stored_blobs += 1
        stored += blob.size
    counted = Content.objects.filter(counted=True).aggregate(blobs=Count("blob"), raw=Sum("size"))
    return Stats(
        stored_blobs=stored_blobs,
        stored=stored,
        named_blobs=counted["blobs"],
        raw=counted["raw"] or 0,
        versions=ArtifactVersion.objects.count(),
        unnamed=Unnamed.objects.count(),
        total=artifact_bytes(),
    )


def _versions() -> Iterator[ArtifactVersion]:
    """Every version in pages, so that no result set is held while blobs are read."""
    after = 0
    while page := list(ArtifactVersion.objects.filter(pk__gt=after).order_by("pk")[:PAGE]):
        yield from page
        after = page[-1].pk
