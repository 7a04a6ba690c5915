"""From an upload to a stored tree: a file is a tree of one entry, a folder the tree of its ZIP's members.

* The body is received first, into a temporary file without a name once it is longer than ``IN_MEMORY``: a slow sender
  costs disk and a thread, never the memory that storing takes. ``WRITERS`` uploads of a process are stored at once.
* Content is claimed for ``holder`` before it is stored. Whatever ends an upload early, its content is released; an
  upload whose process died is found by :func:`manifests.services.content.release_stale_uploads`.
* Modes, times and owners are no part of an artifact: equal content makes equal trees.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import IO

from django.db import DatabaseError

from manifests.services import content
from manifests.services.trees import CONTENT
from manifests.store import answering, current_store
from manifests.zips import Archive, BadArchive, Member, TooManyEntries
from nylorun import config
from nylorun.blobs import Entry, TreeReader, TreeWriter
from nylorun.db.tx import database_now, require_no_tx, transact
from nylorun.http.body import RawBody
from nylorun.http.waiting import release
from nylorun.kernel.errors import ByteLimitExceeded, Fault, InvalidRequest, ServiceUnavailable
from nylorun.kernel.ids import ulid

LIST_MAX = 10_000
"""Entries of one folder artifact."""
IN_MEMORY = 1 << 20
WRITERS = 4
WRITER_SECONDS = 60.0
FILE_MODE, FOLDER_MODE = 0o644, 0o755
_PIECE = 256 << 10
_writers = threading.BoundedSemaphore(WRITERS)


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored tree, claimed for ``holder``; ``sha256`` is of the content of a file, of the content manifest else."""

    holder: str
    root: str
    size: int
    files: int
    sha256: str


@contextmanager
def stored(kind: str, body: RawBody, limit: int) -> Iterator[Stored]:
    """Store the body and give the tree to the block, which makes a version of it; if it does not, content is released.

    ``limit`` is the number of bytes that the files of a folder may have together. Raises what the body raises,
    :class:`InvalidRequest` for a ZIP that is none, :class:`ByteLimitExceeded`, and :class:`ServiceUnavailable`.
    """
    require_no_tx()
    with _received(body) as part:
        holder = ulid("av", database_now())
        release()
        try:
            with _turn(), answering():
                tree = _folder(holder, part, limit) if kind == "folder" else _file(holder, part)
            yield tree
        except BaseException:
            _give_up(holder)
            raise


@contextmanager
def _received(body: RawBody) -> Iterator[IO[bytes]]:
    """The whole body, in a file that goes with the block."""
    with answering():
        # Beside the data, which may be large, and not in a /tmp that may be memory.
        folder = config.current().data_dir / "tmp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = SpooledTemporaryFile(IN_MEMORY, dir=str(folder))  # noqa: SIM115 closed by the block below
    with part:
        with answering():
            for chunk in body.chunks(_PIECE):
                part.write(chunk)
            part.flush()
        yield part


@contextmanager
def _turn() -> Iterator[None]:
    """One of the places for storing; raises :class:`ServiceUnavailable` when none becomes free in time."""
    if not _writers.acquire(timeout=WRITER_SECONDS):
        raise ServiceUnavailable("Too many uploads are being stored already. Try again.")
    try:
        yield
    finally:
        _writers.release()


def _give_up(holder: str) -> None:
    """Release what was claimed; with no database left to say so, the sweep finds it a day later."""
    with suppress(DatabaseError, Fault):
        transact(lambda tx: content.release(tx, [holder]))


def _file(holder: str, part: IO[bytes]) -> Stored:
    size = part.seek(0, 2)
    part.seek(0)
    with _writer(holder) as writer:
        writer.add_file(Entry(CONTENT, "file", FILE_MODE, size=size), iter(partial(part.read, _PIECE), b""))
        tree = writer.finish()
    entry = TreeReader(current_store(), tree.root).find(CONTENT)
    sha256 = tree.sha256 if entry is None else f"sha256:{entry.sha256.hex()}"
    return Stored(holder, tree.root, tree.size, tree.files, sha256)


def _folder(holder: str, part: IO[bytes], limit: int) -> Stored:
    try:
        archive = Archive(part, most=LIST_MAX)
        if archive.size > limit:
            raise _too_large(limit)
        return _unpacked(holder, archive)
    except TooManyEntries:
        raise ByteLimitExceeded(
            f"A folder has at most {LIST_MAX} files and folders.", details={"limit": "files", "max": LIST_MAX}
        ) from None
    except BadArchive as fault:
        raise InvalidRequest([{"path": "", "message": f"must be a ZIP archive; this one {fault}"}]) from None


def _unpacked(holder: str, archive: Archive) -> Stored:
    with _writer(holder) as writer:
        for member in archive.members:
            _add(writer, archive, member)
        tree = writer.finish()
    return Stored(holder, tree.root, tree.size, tree.files, tree.sha256)


def _add(writer: TreeWriter, archive: Archive, member: Member) -> None:
    path = member.path.encode()
    if member.folder:
        writer.add_dir(Entry(path, "dir", FOLDER_MODE))
    else:
        writer.add_file(Entry(path, "file", FILE_MODE, size=member.size), archive.read(member))


def _writer(holder: str) -> TreeWriter:
    return TreeWriter(current_store(), partial(content.claim, holder))


def _too_large(limit: int) -> ByteLimitExceeded:
    return ByteLimitExceeded(
        f"The files of the folder have more than {limit} bytes together.",
        details={"limit": "fileBytes", "limitBytes": limit},
    )
