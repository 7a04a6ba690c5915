"""`nylorun up`: everything on one machine, over one data folder, until a signal ends it.

- Ready means that a wake works: the API answers /readyz, every worker takes work, the Engine answers a ping. Then
  DIR/connection.json {url, applicationKey, pid} is written, mode 0600, and the address printed.
- SIGTERM, SIGINT and SIGHUP end everything it started, in order, within 15 s. Local pods are no children and live on.
- After a SIGKILL the next `up` on the folder ends what is left and continues with the same state.
"""

import argparse
import http
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from urllib.parse import urlsplit

from nylorun.embedded import probes, table
from nylorun.embedded.installation import Installation, run_management
from nylorun.embedded.places import kept
from nylorun.embedded.supervisor import Supervisor

EGRESS_PORT = 3128
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class CannotListen(RuntimeError):
    """The port is taken; the message names it."""


class _Asked(BaseException):
    """A signal asked for the end. Not an Exception: nothing on the way may take it for a failure."""


def run(arguments: argparse.Namespace) -> int:
    """Run until asked to end. Refusals (a wrong setting, folder in use, port taken, ...) are raised."""
    with _ended_by_signals(), suppress(_Asked):
        installation = Installation(arguments.data_dir)
        with installation.lock(), _listen(arguments.port) as listener, _listen_for_gate() as gate:
            installation.check_settings()
            _run(installation, listener, gate, arguments.driver)
    return 0


def _run(installation: Installation, listener: socket.socket, gate: socket.socket, driver: str) -> None:
    """Start all, say so, watch. Whatever ends this also ends what was started."""
    began = time.monotonic()
    installation.unpublish()
    servers = table.Servers(installation)
    environment: dict[str, str] = {}
    parts = [*servers.parts(), *table.processes(installation, environment, listener, gate)]
    supervisor = Supervisor(parts, run=installation.run, logs=installation.logs, say=_say)
    try:
        supervisor.end_leftovers()
        supervisor.begin(table.SERVERS)
        supervisor.wait_ready()
        environment.update(_environment(installation, servers, listener, gate, driver))
        run_management(["migrate", "--noinput"], environment)
        _say("migrated")
        supervisor.begin(table.PROCESSES)
        key = _application_key(installation, environment)
        supervisor.wait_ready()
        key = _accepted_key(installation, environment, listener, key)
        installation.publish_environment(environment)
        url = environment["NYLORUN_PUBLIC_URL"]
        installation.publish_connection(url, key)
        _say(f"ready at {url} after {time.monotonic() - began:.1f} s; key in {installation.connection}")
        supervisor.watch()
    finally:
        _ignore_signals()
        installation.unpublish()
        supervisor.stop()
        if servers.postgres is not None:
            servers.postgres.tidy()


def _environment(
    installation: Installation, servers: table.Servers, listener: socket.socket, gate: socket.socket, driver: str
) -> dict[str, str]:
    """The environment of the processes, with what only `up` knows. Valid once the servers have started."""
    local = f"http://127.0.0.1:{listener.getsockname()[1]}"
    return installation.environment(
        database_url=servers.database_url,
        redis_url=servers.redis_url,
        NYLORUN_DRIVER=driver,
        NYLORUN_PUBLIC_URL=os.environ.get("NYLORUN_PUBLIC_URL", local),
        NYLORUN_ENGINE_URL=os.environ.get("NYLORUN_ENGINE_URL", local),
        NYLORUN_EGRESS_URL=os.environ.get("NYLORUN_EGRESS_URL", f"http://127.0.0.1:{gate.getsockname()[1]}"),
    )


def _application_key(installation: Installation, environment: Mapping[str, str]) -> str:
    """The kept key of the application `up`, drawn when there is none."""

    def draw() -> str:
        return run_management(["create_application", "up", "--replace"], environment).strip()

    return kept(installation.application_key, draw)


def _accepted_key(installation: Installation, environment: Mapping[str, str], listener: socket.socket, key: str) -> str:
    """The key, or a new one when the API refuses it: it was revoked, or it belongs to another database."""
    if probes.http_status(listener.getsockname()[1], "/v1/environments", key) != http.HTTPStatus.UNAUTHORIZED:
        return key
    installation.application_key.unlink()
    return _application_key(installation, environment)


def _listen(port: int) -> socket.socket:
    """The API's socket, bound: the API listens on it, and it goes on listening while the API is started again."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise CannotListen(f"port {port} on 127.0.0.1: {error.strerror}; choose another with --port") from error
    return listener


def _listen_for_gate() -> socket.socket:
    """The egress gate's socket, bound: its usual port, or another when that is taken. It outlives restarts of the gate.

    An address that ``NYLORUN_EGRESS_URL`` names has to be free.
    """
    named = os.environ.get("NYLORUN_EGRESS_URL")
    if named is None:
        try:
            return socket.create_server(("127.0.0.1", EGRESS_PORT))
        except OSError:
            return socket.create_server(("127.0.0.1", 0))
    try:
        url = urlsplit(named)
        family = socket.AF_INET6 if ":" in (url.hostname or "") else socket.AF_INET
        return socket.create_server((url.hostname or "", url.port or 80), family=family)
    except (OSError, ValueError) as error:
        raise CannotListen(f"NYLORUN_EGRESS_URL {named}: {error}") from error


def _say(line: str) -> None:
    with suppress(OSError):  # nobody reads any more: no reason to end
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The first of SIGNALS raises _Asked in the main thread. One that was ignored before stays ignored (nohup)."""

    def ask(number: int, frame: FrameType | None) -> None:
        _ignore_signals()
        raise _Asked

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """The end has begun; another signal would only cut it short."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
