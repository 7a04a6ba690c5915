"""What the tests of disk copies share: an Engine in this process, looks at trees, and a whole copy."""

from __future__ import annotations

import _socket
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from environments.compute.channel import EngineChannel
from environments.compute.copying import FileRead, Listed, NewEntry, Target, Written, list_tree, read_files, write_tree
from environments.compute.engine.children import Children
from environments.compute.engine.pod import Connection, Pod
from environments.compute.engine.tree import Tree

MIB = 1 << 20


@contextmanager
def engine(root: Path) -> Iterator[Target]:
    """A pod's Engine in threads of this process, serving the folder ``root``; gives where to send calls."""
    with tempfile.TemporaryDirectory(prefix="cpy-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/s")
        listener.listen(16)
        pod = Pod(Tree(root), Children())
        pod.epoch = 1
        threads: list[threading.Thread] = []

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                connection = Connection(pod, _socket.socket(fileno=client.detach()))
                threads.append(threading.Thread(target=connection.serve))
                threads[-1].start()

        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield Target(EngineChannel(f"unix:{folder}/s"), 1, "op_test", 1)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(timeout=20)
                assert not thread.is_alive()
            pod.tree.close()


def copy(source: Target, target: Target, *, stage: str | None = None) -> Written:
    """Copy a whole disk, as a snapshot and a restore together do."""
    with list_tree(source) as listing:
        entries = list(listing)
    return write_tree(target, new_entries(source, entries), stage=stage)


def new_entries(source: Target, entries: list[Listed]) -> Iterator[tuple[NewEntry, Iterable[bytes]]]:
    """What is to be written for what was listed; the first name of a file with several carries its data."""
    firsts: dict[int, bytes] = {}
    for entry in entries:
        if entry.kind == "file" and entry.found.nlink > 1:
            firsts.setdefault(entry.found.ino, entry.path)
    whole = [one.path for one in entries if one.kind == "file" and firsts.get(one.found.ino, one.path) == one.path]
    files = read_files(source, whole)
    for entry in entries:
        if entry.kind == "file" and firsts.get(entry.found.ino, entry.path) == entry.path:
            file = next(files)
            assert file.status == "ok", entry
            yield of_file(file), file.data()
            assert file.steady, entry
        elif entry.kind == "file":
            yield NewEntry(entry.path, hardlink=firsts[entry.found.ino]), ()
        else:
            kept: dict[str, Any] = {"target": entry.target, "xattrs": entry.xattrs, "mtime_ns": entry.found.mtime_ns}
            yield NewEntry(entry.path, entry.kind, entry.found.mode, **kept), ()
    assert next(files, None) is None


def of_file(file: FileRead) -> NewEntry:
    found = file.found
    return NewEntry(file.path, "file", found.mode, found.size, found.mtime_ns, xattrs=file.xattrs, extents=file.extents)


def look(root: Path) -> dict[bytes, tuple[Any, ...]]:
    """Everything beneath ``root`` that a copy keeps, read by other means than ours; links between names by number."""
    found: dict[bytes, tuple[Any, ...]] = {}
    numbers: dict[int, int] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            shown = os.path.relpath(path, os.fsencode(root))
            kind = stat.S_IFMT(status.st_mode)
            content: Any = None
            if kind == stat.S_IFREG:
                content = (Path(os.fsdecode(path)).read_bytes(), holes(path))
            elif kind == stat.S_IFLNK:
                content = os.readlink(path)
            same = numbers.setdefault(status.st_ino, len(numbers)) if status.st_nlink > 1 and content else None
            found[shown] = (kind, stat.S_IMODE(status.st_mode), status.st_mtime_ns, content, attributes(path), same)
    return found


def attributes(path: bytes) -> dict[str, bytes]:
    names = os.listxattr(path, follow_symlinks=False)
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names if name.startswith("user.")}


def holes(path: bytes) -> bool:
    """Whether a file takes less room than its size."""
    status = os.stat(path)
    return status.st_blocks * 512 < status.st_size


def paths_of(entries: Iterable[Listed]) -> list[bytes]:
    return [entry.path for entry in entries]
