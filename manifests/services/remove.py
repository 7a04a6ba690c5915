"""Remove: every version of a Manifest, when nothing was made from it.

A create that races the delete wins, or fails because its version is gone: Environments hold their version by a
restricting foreign key, which the database checks at both commits. A name saved again afterwards starts at 1.
Lock: the Manifest row.
"""

from __future__ import annotations

from django.db import IntegrityError
from django.db.models import ProtectedError

from manifests.errors import ManifestInUse
from manifests.models import Manifest, ManifestVersion
from manifests.queries import environments_of
from nylorun.db.locks import Rank
from nylorun.db.tx import Tx, transact


def remove_manifest(name: str) -> int:
    """Delete the name and its versions; returns how many there were, 0 for an unknown name."""

    def work(tx: Tx) -> int:
        row = tx.hold(Rank.MANIFEST, Manifest.objects.filter(pk=name), name, to_delete=True)
        if row is None:
            return 0
        used = environments_of(name)
        if used:
            raise ManifestInUse(name, used)
        versions = ManifestVersion.objects.filter(manifest_id=name).count()
        row.delete()
        return versions

    try:
        return transact(work)
    except (IntegrityError, ProtectedError) as error:
        # An Environment was made between the count and the commit; it may be gone again, but it was there.
        raise ManifestInUse(name, max(1, environments_of(name))) from error
