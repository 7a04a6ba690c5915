"""The bytes of definition files: one file per content, below ``<data dir>/definitions/<2 hex>/<64 hex>``.

* A file of that name is complete and durable: content is written beside it, synced, and renamed, and the folder is
  synced too, before anybody writes a row. A crash leaves at most a ``.part`` file, which nothing reads.
* :func:`read` compares the content with its hash every time: what was cut or changed on the disk is never handed out.
* Nothing here runs inside a transaction.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from manifests.errors import ContentMismatch
from nylorun import config
from nylorun.db.tx import require_no_tx
from nylorun.kernel.errors import ServiceUnavailable


def is_held(sha256: str, size: int) -> bool:
    """Whether the content is where it belongs, by its size; :func:`read` looks at the bytes."""
    require_no_tx()
    try:
        return _path(sha256).stat().st_size == size
    except FileNotFoundError:
        return False


def write(sha256: str, chunks: Iterable[bytes], accept: Callable[[int], None] = lambda size: None) -> int:
    """Keep the content under its hash and return its size; raises :class:`ContentMismatch` for other bytes.

    Whatever ``chunks`` raises, or ``accept`` when it is told the size, ends the write and leaves nothing.
    """
    require_no_tx()
    target = _path(sha256)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            size = _copy(sha256, chunks, file.fileno())
        accept(size)
        part.rename(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)
    return size


def read(sha256: str) -> bytes:
    """The content; raises :class:`ServiceUnavailable` when it is missing or not what it was."""
    require_no_tx()
    try:
        content = _path(sha256).read_bytes()
    except OSError as error:
        raise ServiceUnavailable(f"Definition file sha256:{sha256} cannot be read.") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ServiceUnavailable(f"Definition file sha256:{sha256} is damaged: send it again with PUT /v1/files.")
    return content


def _copy(sha256: str, chunks: Iterable[bytes], file: int) -> int:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        _write_all(file, chunk)
    if digest.hexdigest() != sha256:
        raise ContentMismatch(f"sha256:{sha256}", f"sha256:{digest.hexdigest()}")
    os.fsync(file)
    return size


def _write_all(file: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync_folder(folder: Path) -> None:
    # The entry of a new folder lies in its parent: both are synced, or a power cut could take the file with it.
    for place in (folder, folder.parent):
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _path(sha256: str) -> Path:
    return config.current().data_dir / "definitions" / sha256[:2] / sha256
