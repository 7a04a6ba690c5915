"""The sandbox of a pod, as arguments for bubblewrap. Pure: values in, values out; nothing is opened or started here.

A reader may rely on the pod having:
  * new user, pid, mount, ipc, uts, cgroup and network namespaces, uid and gid 1000, no capability, no new privileges,
    no further user namespaces, and the seccomp filter of ``seccomp``;
  * of the host: ``/usr`` (with ``/bin``, ``/lib*``), the interpreter and the code of the Engine, and a few files of
    ``/etc``, all read-only; ``/`` and ``/dev`` read-only as well, so nothing grows in memory there;
  * ``/workspace`` and ``/harness`` writable, nosuid and nodev; ``/tmp`` and ``/dev/shm`` empty, with a size;
  * a network of one loopback device, a host name of its own, and the environment it is given and nothing else.
Folders of the host that the pod's outside user may have no way to are :class:`Folder`: the launcher gives them a path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from environments.compute.wayout import way_out

UID = GID = 1000
USER = "sandbox"
LISTENING = 100  # the number under which the Engine finds the handle of its socket
CODE = "/run/nylorun"
ENGINE = f"{CODE}/environments/compute/engine"
SHM_BYTES_MOST, TMP_BYTES_MOST = 64 << 20, 1 << 30
TRUSTED = "/run/egress.pem"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START = f"import sys; sys.path.insert(0, {CODE!r}); from environments.compute.engine.pod import main; main(%s, %d)"

# Certificates, the names of alternatives and the loader's cache: what programs of /usr need. No host data, no resolver.
ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "mime.types", "pki/ca-trust", "pki/tls/certs", "pki/tls/cert.pem", "protocols", "services", "ssl/certs",
    "ssl/cert.pem", "ssl/openssl.cnf",
)  # fmt: skip
ETC_MADE = {
    "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\n{USER}:x:{UID}:{GID}:{USER}:/workspace:/bin/bash\n",
    "group": f"root:x:0:\n{USER}:x:{GID}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True, slots=True)
class Folder:
    """An argument that is a path at which the outside user finds the host's folder ``path``."""

    path: str


@dataclass(frozen=True, slots=True)
class Data:
    """An argument that is the number of a handle from which ``data`` is read."""

    data: bytes


Argument = str | Folder | Data


@dataclass(frozen=True, slots=True)
class Host:
    """What the sandbox takes from this host.

    ``top`` maps ``bin``, ``lib`` and so on to the target of the link it is, or ``None`` for a folder. ``etc`` names the
    entries of :data:`ETC` that exist. ``prefix`` is the interpreter's folder, ``None`` when it lies below ``/usr``.
    """

    top: Mapping[str, str | None]
    etc: tuple[str, ...]
    python: str
    prefix: str | None
    engine: str
    seccomp: bytes
    disable_userns: bool = True


@dataclass(frozen=True, slots=True)
class Box:
    """What differs from pod to pod. ``processes`` is the most that may run in it."""

    hostname: str
    workspace: str
    harness: str
    memory: int
    processes: int
    marker: str
    env: Mapping[str, str] = field(default_factory=dict)
    trusted: bytes | None = None
    """The certificates, as PEM, that a pod with a way out trusts; ``None`` without one."""


def options(host: Host, box: Box) -> list[Argument]:
    """Everything for ``bwrap`` before ``--``."""
    parts = (_isolation(host, box), _system(host), _way_out(box), _memory_folders(box), _volume(box))
    return [*chain.from_iterable(parts), *_environment(host, box)]


def command(host: Host, box: Box) -> list[str]:
    """What ``bwrap`` runs: the Engine. The last two arguments are for ``processes`` and for people who look at them."""
    start = START % (LISTENING, box.processes)
    return [host.python, "-I", "-S", "-B", "-X", "utf8", "-c", start, box.marker, box.hostname]


def _isolation(host: Host, box: Box) -> Iterator[Argument]:
    yield from ("--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(GID), "--cap-drop", "ALL")
    if host.disable_userns:
        yield "--disable-userns"
    yield from ("--hostname", box.hostname, "--die-with-parent", "--new-session", "--as-pid-1")
    yield from ("--seccomp", Data(host.seccomp))


def _system(host: Host) -> Iterator[Argument]:
    for folder in ("/etc", "/run", "/var"):
        yield from ("--perms", "0755", "--dir", folder)
    yield from ("--ro-bind", "/usr", "/usr")
    for name, target in sorted(host.top.items()):
        yield from ("--ro-bind", f"/{name}", f"/{name}") if target is None else ("--symlink", target, f"/{name}")
    for name in host.etc:
        yield from ("--ro-bind", f"/etc/{name}", f"/etc/{name}")
    for name, text in ETC_MADE.items():
        yield from ("--perms", "0444", "--file", Data(text.encode("ascii")), f"/etc/{name}")
    if host.prefix is not None:
        yield from ("--ro-bind", Folder(host.prefix), host.prefix)
    yield from ("--ro-bind", Folder(host.engine), ENGINE)
    yield from ("--proc", "/proc", "--dev", "/dev")


def _way_out(box: Box) -> Iterator[Argument]:
    if box.trusted is not None:
        yield from ("--perms", "0444", "--file", Data(box.trusted), TRUSTED)


def _memory_folders(box: Box) -> Iterator[Argument]:
    """Together at most five eighths of the memory: files there are not given back when it runs out, so a pod that
    filled it with them could start no command to remove them."""
    shm, tmp = min(box.memory // 8, SHM_BYTES_MOST), min(box.memory // 2, TMP_BYTES_MOST)
    yield from ("--perms", "1777", "--size", str(shm), "--tmpfs", "/dev/shm")  # noqa: S108 - inside the sandbox
    yield from ("--perms", "1777", "--size", str(tmp), "--tmpfs", "/tmp")  # noqa: S108
    yield from ("--symlink", "../tmp", "/var/tmp")  # noqa: S108 - inside the sandbox


def _volume(box: Box) -> Iterator[Argument]:
    yield from ("--bind", Folder(box.workspace), "/workspace")
    yield from ("--bind", Folder(box.harness), "/harness")
    yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/workspace")


def _environment(host: Host, box: Box) -> Iterator[Argument]:
    yield "--clearenv"
    path = PATH if host.prefix is None else f"{PATH}:{host.prefix}/bin"
    base = {"PATH": path, "HOME": "/workspace", "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash", "LANG": "C.UTF-8"}
    out = {} if box.trusted is None else way_out(TRUSTED)
    for name, value in {**base, **out, **box.env}.items():
        yield from ("--setenv", name, value)
