"""Installation: the data folder of one machine, what it holds, and the environment its processes get.

    DIR/secret_key, keyring, application.key   drawn once, mode 0600; losing `keyring` loses every Vault
    DIR/postgres, DIR/valkey                   the embedded servers
    DIR/run                                    pid files, sockets, environment.json while `up` runs
    DIR/logs                                   one log a part
    DIR/connection.json                        address and key, while `up` is ready
    DIR/up.lock                                held by the one process that runs the servers of DIR

- What the caller's environment names (DATABASE_URL, REDIS_URL, SECRET_KEY, NYLORUN_KEYRING, ...) wins over DIR.
- A file that another process reads is written whole or not at all.
"""

import base64
import fcntl
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import nylorun
from nylorun import config
from nylorun.embedded.places import kept, make_folder, socket_folder, write_private

SETTINGS_MODULE = "nylorun.settings.prod"
ENGINE_SOCKET = "engine.sock"
EMBEDDED = {"DATABASE_URL": "postgresql://localhost/nylorun", "REDIS_URL": "redis://localhost/0"}
"""Of the form that the addresses of the embedded servers have, before these are known."""
ALLOCATOR = {"MALLOC_ARENA_MAX": "2"}  # many threads otherwise keep a heap each


class InUse(RuntimeError):
    """Another process holds the data folder; the message names it."""


class CommandFailed(RuntimeError):
    """A management command failed; the message holds what it said."""


class Installation:
    """One data folder. Made if missing, with its secrets."""

    def __init__(self, folder: Path) -> None:
        walk = 0o711 if os.geteuid() == 0 else 0o700  # root's servers and pods run as other users and walk through
        self.folder = make_folder(folder.absolute(), mode=walk)
        self.run = make_folder(self.folder / "run", mode=walk)
        self.logs = make_folder(self.folder / "logs")
        self.connection = self.folder / "connection.json"
        self.application_key = self.folder / "application.key"
        self.workspaces = self.folder / "workspaces"
        self._environment_file = self.run / "environment.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder; InUse when another process does. It is free again when the holder ends, however it ends."""
        with (self.folder / "up.lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise InUse(
                    f"{self.folder} is in use by another nylorun (pid {holder}); stop it, or choose another --data-dir"
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def engine_socket(self) -> Path:
        """Where the virtual Engine listens: a path short enough for a socket, in a folder closed to other users."""
        return socket_folder(self.run / "engine", ENGINE_SOCKET, None) / ENGINE_SOCKET

    def environment(self, *, database_url: str, redis_url: str, **more: str) -> dict[str, str]:
        """The environment of every process of this installation that may see its secrets."""
        ours = {
            "DJANGO_SETTINGS_MODULE": SETTINGS_MODULE,
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "NYLORUN_DATA_DIR": str(self.folder),
            "NYLORUN_VIRTUAL_ENGINE": f"unix:{self.engine_socket()}",
            **more,
        }
        return {**ALLOCATOR, **self._secrets(), **os.environ, **ours, **import_path()}

    def check_settings(self) -> None:
        """Refuse a setting with which no process would start, before one does: raises :class:`config.ConfigError`."""
        config.check({**EMBEDDED, **self._secrets(), **os.environ})

    def _secrets(self) -> dict[str, str]:
        """The secrets that the caller's environment does not name; drawn at the first start."""
        found: dict[str, str] = {}
        if "SECRET_KEY" not in os.environ:
            found["SECRET_KEY"] = kept(self.folder / "secret_key", lambda: secrets.token_urlsafe(48))
        if "NYLORUN_KEYRING" not in os.environ:
            keyring = self.folder / "keyring"
            kept(keyring, lambda: base64.b64encode(secrets.token_bytes(32)).decode() + "\n")
            found["NYLORUN_KEYRING"] = f"file:{keyring}"
        return found

    def publish_environment(self, environment: Mapping[str, str]) -> None:
        """Let `nylorun manage` and `nylorun keys` use what runs."""
        ours = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        write_private(self._environment_file, json.dumps(ours))

    def publish_connection(self, url: str, key: str) -> None:
        """Tell clients on this machine where the installation is and how to enter."""
        content = {"url": url, "applicationKey": key, "pid": os.getpid()}
        write_private(self.connection, json.dumps(content, indent=2) + "\n")

    def published_environment(self) -> dict[str, str]:
        """The environment of the `up` that runs; InUse when it has not come that far."""
        try:
            ours: dict[str, str] = json.loads(self._environment_file.read_text())
        except FileNotFoundError as error:
            raise InUse(f"nylorun is starting or ending on {self.folder}; try again in a moment") from error
        return {**os.environ, **ours}

    def unpublish(self) -> None:
        """Take back what told others how to reach the installation."""
        self.connection.unlink(missing_ok=True)
        self._environment_file.unlink(missing_ok=True)


def import_path() -> dict[str, str]:
    """PYTHONPATH for a source tree that is run without being installed; nothing for an installed package."""
    root = Path(nylorun.__file__).resolve().parents[1]
    if not (root / "manage.py").exists():
        return {}
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{root}{os.pathsep}{before}" if before else str(root)}


def management(arguments: Sequence[str]) -> tuple[str, ...]:
    """The argv of a management command."""
    return (sys.executable, "-m", "django", *arguments)


def run_management(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a management command and return what it printed; CommandFailed when it fails."""
    done = subprocess.run(management(arguments), env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandFailed(
            f"{arguments[0]} failed (exit code {done.returncode}):\n{(done.stdout + done.stderr)[-4000:]}"
        )
    return done.stdout
