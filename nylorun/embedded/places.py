"""Places: which user the servers run as, and where that user can read programs, keep data and listen.

- Started by root, PostgreSQL and Valkey run as an ordinary user (`server_uid`); started by anyone else, as that user.
- A program below a folder closed to that user (a virtual environment below /root, say) is copied once to a cache.
- A socket's path stays below the 107 bytes the kernel allows: a folder too deep is replaced by one below the runtime
  folder, named by a hash of the wanted path and closed to every other user.
"""

import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

SERVER_UID = 60705  # no account has it: nothing else on the machine runs as this user
SOCKET_PATH_MAX = 107
CACHE = Path("/var/cache/nylorun")


class PlaceError(RuntimeError):
    """A folder cannot be used safely; the message names it and says why."""


def server_uid(folder: Path) -> int | None:
    """The user the servers of `folder` run as: None = the caller. Root keeps the owner of an existing folder."""
    if os.geteuid() != 0:
        return None
    owner = folder.stat().st_uid if folder.exists() else 0
    return owner or SERVER_UID


def named_uid() -> int:
    """An ordinary user that has a name, which initdb insists on: `nobody`, or else the first that is not root."""
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        others = [account.pw_uid for account in pwd.getpwall() if account.pw_uid != 0]
    if not others:
        raise PlaceError("no ordinary user has a name in /etc/passwd; initdb needs one, add the user `nobody`")
    return others[0]


def reachable(path: Path) -> bool:
    """Whether every user can walk to `path`: all folders above it are open to others."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def open_program(roots: tuple[Path, ...], uid: int | None) -> Path:
    """The first of `roots` (folders side by side), or its copy in the cache when user `uid` cannot read them."""
    first = roots[0]
    if uid is None or (reachable(first) and _readable(first)):
        return first
    home = CACHE / f"{first.name}-{_fingerprint(roots)}"
    if not home.exists():
        _copy_beside(roots, home)
    return home / first.name


def make_folder(path: Path, uid: int | None = None, mode: int = 0o700) -> Path:
    """Make `path` if missing and give it to `uid`; its parents too, open for walking when they are root's."""
    walk = 0o711 if os.geteuid() == 0 else 0o700
    for parent in reversed(path.parents):
        if not parent.exists():
            _mkdir(parent, walk)
    if not path.exists():
        _mkdir(path, mode)
    if uid is not None and path.stat().st_uid != uid:
        os.chown(path, uid, uid)
    return path


def _mkdir(path: Path, mode: int) -> None:
    path.mkdir(mode=0o700)
    path.chmod(mode)  # mkdir alone would subtract the umask


def socket_folder(wanted: Path, name: str, uid: int | None) -> Path:
    """A folder only `uid` (and root) can enter, where a socket called `name` can be made. `wanted` when it will do."""
    fits = len(os.fsencode(wanted.absolute() / name)) <= SOCKET_PATH_MAX
    if fits and (uid is None or reachable(wanted)):
        return make_folder(wanted.absolute(), uid)
    digest = hashlib.sha256(os.fsencode(wanted.absolute())).hexdigest()[:16]
    return _own(make_folder(_runtime() / digest, uid), uid)


def kept(path: Path, draw: Callable[[], str]) -> str:
    """The text of a private file; drawn and written when there is no such file."""
    if not path.exists():
        write_private(path, draw())
    return path.read_text()


def write_private(path: Path, text: str) -> None:
    """Replace `path`, mode 0600, whole or not at all, also when the machine stops meanwhile."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.rename(draft, path)


def _runtime() -> Path:
    """Where short-lived folders with short names go: /run for root, else a folder of the user's own below /tmp."""
    if os.geteuid() == 0:
        return make_folder(Path("/run/nylorun"), mode=0o711)
    return _own(make_folder(Path("/tmp") / f"nylorun-{os.geteuid()}"), None)  # noqa: S108 (checked to be ours; TMPDIR may be too long)


def _own(path: Path, uid: int | None) -> Path:
    """Refuse a folder that another user put there first, or left open."""
    found = path.lstat()
    wanted = os.geteuid() if uid is None else uid
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != wanted or found.st_mode & 0o077:
        raise PlaceError(f"{path} is not a private folder of user {wanted}; remove it")
    return path


def _readable(root: Path) -> bool:
    return all(path.stat().st_mode & stat.S_IROTH for path in root.rglob("*"))


def _fingerprint(roots: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*")):
            found = path.stat()
            digest.update(f"{path.relative_to(root.parent)}:{found.st_size}:{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _copy_beside(roots: tuple[Path, ...], home: Path) -> None:
    """Copy to a temporary folder, open it to readers, then rename: a half-made copy is never used."""
    make_folder(home.parent, mode=0o755)
    draft = Path(tempfile.mkdtemp(dir=home.parent, prefix=".copy-"))
    try:
        for root in roots:
            shutil.copytree(root, draft / root.name)
        for path in (draft, *draft.rglob("*")):
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        draft.rename(home)
    except FileExistsError:  # another start made the same copy first
        return
    except OSError:
        if not home.exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
