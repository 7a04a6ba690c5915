"""Disk versions at rest: trees of files as immutable, compressed, content-addressed blobs in a store.

Nothing here knows rows, tenants or sandboxes. A caller gives a :class:`TreeWriter` the entries of a tree and a
``claim`` that notes which blobs are in use before they are relied on; it gets the name of a root, which a
:class:`TreeReader` reads. What a root names never changes.
"""

from __future__ import annotations

from nylorun.blobs.blob import blob_id, read_blob, write_blob
from nylorun.blobs.entry import Entry, Ref
from nylorun.blobs.errors import BadTree, BlobDamaged, BlobError, BlobMissing, StoreUnavailable, TreeTooLarge
from nylorun.blobs.filesystem import FileSystemStore
from nylorun.blobs.locations import store_for
from nylorun.blobs.memory import MemoryStore
from nylorun.blobs.reader import TreeReader, blobs, content_manifest
from nylorun.blobs.records import unpack
from nylorun.blobs.s3 import S3Store
from nylorun.blobs.sink import Claim
from nylorun.blobs.store import Store, StoredBlob
from nylorun.blobs.verify import Problem, verify
from nylorun.blobs.writer import Tree, TreeWriter

__all__ = [
    "BadTree",
    "BlobDamaged",
    "BlobError",
    "BlobMissing",
    "Claim",
    "Entry",
    "FileSystemStore",
    "MemoryStore",
    "Problem",
    "Ref",
    "S3Store",
    "Store",
    "StoreUnavailable",
    "StoredBlob",
    "Tree",
    "TreeReader",
    "TreeTooLarge",
    "TreeWriter",
    "blob_id",
    "blobs",
    "content_manifest",
    "read_blob",
    "store_for",
    "unpack",
    "verify",
    "write_blob",
]
