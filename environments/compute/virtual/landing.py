"""The files that ``curl`` and ``wget`` read and write, and what they print.

A reader may rely on:
  * below ``/workspace`` files are opened as the file tools open them: no link leads out, nothing waits; they are
    written as they come, and what was written stays when the rest fails;
  * elsewhere files are the interpreter's own, in memory: at most ``HELD_MAX`` bytes each;
  * what is printed is text, at most ``HELD_MAX`` bytes of it: the interpreter takes no other bytes from us.
"""

from __future__ import annotations

import os
import posixpath
from typing import Protocol

from bashkit import FileSystem

from environments.compute.engine.paths import Place, locate, normalise
from environments.compute.engine.tree import Tree
from environments.compute.engine.wire import ToolError
from environments.compute.virtual.transfer import Failure

HELD_MAX = 8 << 20
SENT_MAX = 16 << 20
WRITE_FAILED, READ_FAILED = 23, 26
_HOME, _NOWHERE = "/workspace", "/dev/null"


class Sink(Protocol):
    """Where a body goes; both raise ``Failure``."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...


class Held:
    """Bytes in memory."""

    def __init__(self, advice: str) -> None:
        self.data = bytearray()
        self._advice = advice

    def write(self, data: bytes) -> None:
        if len(self.data) + len(data) > HELD_MAX:
            raise Failure(WRITE_FAILED, f"Failure writing output: more than {HELD_MAX >> 20} MiB; {self._advice}")
        self.data += data

    def close(self) -> None:
        """Nothing waits to be written."""


class Printed(Held):
    """What goes to standard output."""

    def __init__(self) -> None:
        super().__init__("write to a file with -o FILE or -O")

    def text(self) -> str:
        """All of it; raises ``Failure`` when it is no text."""
        data, self.data = self.data, bytearray()
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise Failure(
                WRITE_FAILED, "Failure writing output: it is not UTF-8 text; write it to a file with -o FILE or -O"
            ) from None


class _Nowhere:
    def write(self, data: bytes) -> None:
        """Nobody asked for it."""

    def close(self) -> None:
        """Nothing was opened."""


class _InMemory(Held):
    """A file of the interpreter's own."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        super().__init__("write below /workspace")
        self._fs = fs
        self._path = path

    def close(self) -> None:
        try:
            self._fs.write_file(self._path, bytes(self.data))
        except (OSError, RuntimeError, ValueError) as error:
            raise Failure(WRITE_FAILED, f"Failure writing output to {self._path}") from error


class _OnDisk:
    """A file of the workspace."""

    def __init__(self, handle: int, path: str) -> None:
        self._handle = handle
        self._path = path

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except OSError as error:
            raise Failure(WRITE_FAILED, f"Failure writing output to {self._path}: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._handle)


class Landing:
    """The files of one command, named from ``cwd``."""

    def __init__(self, tree: Tree, fs: FileSystem, cwd: str) -> None:
        self._tree = tree
        self._fs = fs
        self._cwd = cwd

    def full(self, path: str) -> str:
        """The absolute path, without ``.`` and ``..``."""
        return posixpath.normpath(posixpath.join(self._cwd, path))

    def exists(self, path: str) -> bool:
        """Whether something stands there."""
        full = self.full(path)
        if not _is_on_disk(full):
            return bool(self._fs.exists(full))
        try:
            with locate(self._tree.root, normalise(full), follow=False, make_folders=False) as place:
                return place.status is not None
        except (ToolError, OSError):
            return False

    def open(self, path: str) -> Sink:
        """Make the file, or empty it; raises ``Failure``."""
        full = self.full(path)
        if full == _NOWHERE:
            return _Nowhere()
        if not _is_on_disk(full):
            return _InMemory(self._fs, full)
        try:
            with locate(self._tree.root, normalise(full), follow=True, make_folders=False) as place:
                return _OnDisk(_created(place), full)
        except (ToolError, OSError) as error:
            raise Failure(WRITE_FAILED, f"Failure writing output to {full}: {_words(error)}") from error

    def read(self, path: str) -> bytes:
        """The whole file; raises ``Failure``, also beyond ``SENT_MAX`` bytes."""
        full = self.full(path)
        data = bytearray()

        def take(piece: bytes) -> None:
            data.extend(piece)
            if len(data) > SENT_MAX:
                raise Failure(READ_FAILED, f"{full} is larger than the {SENT_MAX >> 20} MiB that can be sent")

        try:
            if _is_on_disk(full):
                self._tree.read(full, 0, None, take)
            else:
                take(self._fs.read_file(full))
        except (ToolError, OSError, RuntimeError, ValueError) as error:
            raise Failure(READ_FAILED, f"Failed to open {full}: {_words(error)}") from error
        return bytes(data)


def _is_on_disk(full: str) -> bool:
    return full == _HOME or full.startswith(f"{_HOME}/")


def _created(place: Place) -> int:
    """A handle of the regular file at ``place``, emptied. Raises ``OSError``."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(place.name or ".", flags, 0o644, dir_fd=place.parent)
    try:
        os.ftruncate(handle, 0)  # of anything that is no regular file this fails
    except BaseException:
        os.close(handle)
        raise
    return handle


def _words(error: Exception) -> str:
    if isinstance(error, ToolError):
        return error.message
    return (error.strerror or "") if isinstance(error, OSError) else "it cannot be opened"
