"""Walking to a path beneath a root so that nothing a hostile tree does while we walk leads out of it.

Every step opens one component relative to a folder that was itself reached beneath the root, with ``O_NOFOLLOW``;
links are read and followed here, not by the kernel. So a link, a rename or a swap at any moment can change which file
is found, and never one outside the root.

A reader may rely on:
  * the tree sees itself as ``/workspace`` in an otherwise empty ``/``: absolute links below ``/workspace`` work, also
    when the root is another folder of the host; everything else is ``tool.path_escape``;
  * ``.`` and ``..`` of the asked path are taken away first, as text; ``..`` inside links goes up as the kernel does;
  * opening a place never blocks and never acts on a device: places are ``O_PATH`` handles.
Bounds: ``MAX_LINKS`` links and ``MAX_DEPTH`` folders on one walk.
"""

from __future__ import annotations

import os
import stat

from environments.compute.engine.wire import ToolError

MOUNT = "workspace"
MAX_LINKS = 40
MAX_DEPTH = 256
LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def escape(path: str) -> ToolError:
    """The refusal for a path that leads out."""
    return ToolError("tool.path_escape", f"{path} leads out of /{MOUNT}.")


def normalise(path: str) -> str:
    """The asked path relative to the root, without ``.`` and ``..``; ``""`` is the root itself."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ToolError("tool.failed", "A path is text that has a UTF-8 form.") from None
    if "\0" in path:
        raise ToolError("tool.failed", "A path has no NUL.")
    parts: list[str] = [] if path.startswith("/") else [MOUNT]
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    if not parts or parts[0] != MOUNT:
        raise escape(path)
    return "/".join(parts[1:])


class Place:
    """A name in a folder beneath the root. ``parent`` is an ``O_PATH`` handle that belongs to this Place.

    ``name`` is ``""`` for the root itself. ``status`` is what ``lstat`` said of the name, ``None`` when it is missing.
    """

    __slots__ = ("name", "parent", "status")

    def __init__(self, parent: int, name: str, status: os.stat_result | None) -> None:
        self.parent = parent
        self.name = name
        self.status = status

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.parent)

    @property
    def is_folder(self) -> bool:
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return self.status is not None and stat.S_ISREG(self.status.st_mode)

    def open(self, flags: int) -> int:
        """Open the name itself, never what a link there points to and never waiting for a writer."""
        name = self.name or "."
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=self.parent)


class Walk:
    """One walk from the root. The stack of handles is where it stands; an empty one is the ``/`` above the root."""

    def __init__(self, root: int, shown: str, *, make_folders: bool = False) -> None:
        self._root = root
        self._shown = shown
        self._make_folders = make_folders
        self._links = 0
        self._stack: list[int] = [os.dup(root)]

    def close(self) -> None:
        while self._stack:
            os.close(self._stack.pop())

    def to(self, path: str, *, follow: bool) -> Place:
        """Go to ``path``, relative to the root; ``follow`` says whether a link at its end is followed as well."""
        ahead = path.split("/")[::-1]
        while ahead:
            part = ahead.pop()
            if part == "..":
                self._up()
            elif part in ("", "."):
                continue
            elif not self._stack:
                self._enter_root(part)
            elif place := self._step(part, ahead, follow=follow):
                return place
        if not self._stack:
            raise escape(self._shown)
        here = self._stack.pop()
        return Place(here, "", os.fstat(here))

    def _up(self) -> None:
        if self._stack:
            os.close(self._stack.pop())

    def _enter_root(self, part: str) -> None:
        if part != MOUNT:
            raise escape(self._shown)
        self._stack.append(os.dup(self._root))

    def _step(self, part: str, ahead: list[str], *, follow: bool) -> Place | None:
        """Take one component; a Place when the walk ends here."""
        last = not any(name not in ("", ".") for name in ahead)
        handle = self._look(part, last=last)
        if handle is None:
            return Place(self._stack.pop(), part, None)
        try:
            status = os.fstat(handle)
            if stat.S_ISLNK(status.st_mode) and (follow or not last):
                self._follow(handle, ahead)
                return None
            if last:
                return Place(self._stack.pop(), part, status)
            if not stat.S_ISDIR(status.st_mode):
                raise ToolError("tool.not_directory", f"{self._shown} goes through something that is not a folder.")
            self._push(os.dup(handle))
        finally:
            os.close(handle)
        return None

    def _look(self, part: str, *, last: bool) -> int | None:
        try:
            return os.open(part, LOOK, dir_fd=self._stack[-1])
        except FileNotFoundError:
            if last:
                return None
            if not self._make_folders:
                raise
        self._make(part)
        return os.open(part, LOOK, dir_fd=self._stack[-1])

    def _make(self, part: str) -> None:
        """Make a folder on the way; another writer that was first is as good."""
        try:
            os.mkdir(part, 0o755, dir_fd=self._stack[-1])
        except FileExistsError:
            return

    def _follow(self, handle: int, ahead: list[str]) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise ToolError("tool.failed", f"{self._shown} goes through too many links.")
        target = os.readlink("", dir_fd=handle)
        if target.startswith("/"):
            self.close()
        ahead.extend(target.split("/")[::-1])

    def _push(self, handle: int) -> None:
        self._stack.append(handle)
        if len(self._stack) > MAX_DEPTH:
            raise ToolError("tool.failed", f"{self._shown} lies too deep.")


def locate(root: int, path: str, *, follow: bool, make_folders: bool = False) -> Place:
    """Find the already normalised ``path`` beneath ``root``; raises ``OSError`` and :class:`ToolError`."""
    walk = Walk(root, f"/{MOUNT}/{path}".rstrip("/"), make_folders=make_folders)
    try:
        return walk.to(path, follow=follow)
    finally:
        walk.close()
