"""The process table of one machine: which processes nylorun consists of, and the order they end in.

    postgres, valkey      each a stage; none where DATABASE_URL or REDIS_URL names another server
    engine                the virtual Engine, which sees neither database, broker nor keyring
    worker, worker-disk   long disk work has a worker of its own, so that a wake never waits behind it
    egress                the egress gate, on a socket that the supervisor holds; one stage with the workers
    beat
    api                   on a socket that the supervisor holds: a restart of the API refuses no connection

The servers start first, then all the others side by side. All end in the reverse of this order, within the sum of the
graces of the stages: 14 s.
"""

import http
import os
import socket
import sys
from collections.abc import Mapping

from nylorun.embedded import probes
from nylorun.embedded.installation import Installation, import_path, management
from nylorun.embedded.parts import Part, server_part
from nylorun.embedded.postgres import Postgres
from nylorun.embedded.processes import Command
from nylorun.embedded.server import Server
from nylorun.embedded.valkey import Valkey

POSTGRES, VALKEY, ENGINE, WORKERS, BEAT, API = range(6)
SERVERS = (POSTGRES, VALKEY)
PROCESSES = (ENGINE, WORKERS, BEAT, API)
API_THREADS = 128
"""Half of them may wait for long work (NYLORUN_WAITING_CALLS); a waiting thread costs little, holds no connection."""
CELERY = (sys.executable, "-m", "celery", "-A")
WORKER_QUEUES = {"worker": ("control,sweep", 8, 0), "worker-disk": ("disk,setup", 8, 2)}
"""Queues, threads, and by how many degrees it steps back behind the others."""
PLAIN_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH")


class Servers:
    """The embedded servers of an installation: those that the caller's environment does not name."""

    def __init__(self, installation: Installation) -> None:
        folder, logs = installation.folder, installation.logs
        self.postgres = (
            None if "DATABASE_URL" in os.environ else Postgres(folder / "postgres", log=logs / "postgres.log")
        )
        self.valkey = None if "REDIS_URL" in os.environ else Valkey(folder / "valkey", log=logs / "valkey.log")

    @property
    def database_url(self) -> str:
        return self.postgres.url if self.postgres else os.environ["DATABASE_URL"]

    @property
    def redis_url(self) -> str:
        """Valid once the servers have started."""
        return self.valkey.url if self.valkey else os.environ["REDIS_URL"]

    def embedded(self) -> list[Server]:
        """Those that are ours to run, in the order they start in."""
        return [server for server in (self.postgres, self.valkey) if server is not None]

    def parts(self) -> list[Part]:
        stages = {"postgres": (POSTGRES, 4.0), "valkey": (VALKEY, 1.5)}
        return [server_part(server, *stages[server.name]) for server in self.embedded()]


def processes(
    installation: Installation, environment: Mapping[str, str], listener: socket.socket, gate: socket.socket
) -> list[Part]:
    """The parts that are nylorun itself. `environment` is read at each start: it may be completed later."""
    workers = [_worker(installation, environment, name) for name in WORKER_QUEUES]
    return [
        _engine(installation),
        *workers,
        _egress(installation, environment, gate),
        _beat(installation, environment),
        _api(environment, listener),
    ]


def _engine(installation: Installation) -> Part:
    path = installation.engine_socket()
    where = ("--socket", str(path), "--root", str(installation.workspaces))
    plain = {name: os.environ[name] for name in PLAIN_ENVIRONMENT if name in os.environ} | import_path()
    return Part(
        name="engine",
        stage=ENGINE,
        prepare=lambda: Command((sys.executable, "-m", "environments.compute.virtual.server", *where), env=plain),
        ready=lambda pid: probes.engine_ready(path),
        grace=1.5,
    )


def _worker(installation: Installation, environment: Mapping[str, str], name: str) -> Part:
    queues, threads, nice = WORKER_QUEUES[name]
    mark = installation.run / f"{name}.ready"
    options = ("--pool=threads", f"--concurrency={threads}", f"--queues={queues}", f"--hostname={name}@%h")
    ready = "--include=workers.ready"  # writes the mark
    sole = f"{socket.gethostname()}:{installation.folder}:{name}"
    quiet = ("--without-gossip", "--without-mingle", "--loglevel=INFO")  # one machine: nobody to gossip with
    return Part(
        name=name,
        stage=WORKERS,
        prepare=lambda: Command(
            (*CELERY, "workers.celery", "worker", ready, *options, *quiet),
            env={
                **environment,
                "DJANGO_SETTINGS_MODULE": "nylorun.settings.worker",
                "NYLORUN_READY_FILE": str(mark),
                "NYLORUN_WORKER": sole,
                "NYLORUN_NICE": str(nice),
            },
        ),
        ready=lambda pid: probes.marked_ready(mark, pid),
        grace=3.5,
    )


def _egress(installation: Installation, environment: Mapping[str, str], gate: socket.socket) -> Part:
    mark = installation.run / "egress.ready"
    arguments = ("run_egress", "--fd", str(gate.fileno()), "--ready-file", str(mark))
    return Part(
        name="egress",
        stage=WORKERS,
        prepare=lambda: Command(
            tuple(management(arguments)),
            env={**environment, "DJANGO_SETTINGS_MODULE": "nylorun.settings.worker"},
            pass_fds=(gate.fileno(),),
        ),
        ready=lambda pid: probes.marked_ready(mark, pid),
        grace=1.5,
    )


def _beat(installation: Installation, environment: Mapping[str, str]) -> Part:
    files = (f"--schedule={installation.run / 'beat.schedule'}", "--pidfile=", "--loglevel=INFO")
    return Part(
        name="beat",
        stage=BEAT,
        prepare=lambda: Command((*CELERY, "workers.beat", "beat", *files), env=environment),
        grace=2.0,
    )


def _api(environment: Mapping[str, str], listener: socket.socket) -> Part:
    port: int = listener.getsockname()[1]
    options = (
        "--config=python:nylorun.access.gunicorn",
        "--worker-class=nylorun.http.server.Worker",
        "--limit-request-line=8190",
        f"--workers={os.environ.get('NYLORUN_API_WORKERS', '1')}",
        f"--threads={os.environ.get('NYLORUN_API_THREADS', API_THREADS)}",
        f"--bind=fd://{listener.fileno()}",
        "--graceful-timeout=1",
        "--keep-alive=30",
        "--worker-tmp-dir=/dev/shm",  # the heartbeat file: on a slow disk its write would look like a hang
        "--no-control-socket",
        "--log-level=warning",
    )
    return Part(
        name="api",
        stage=API,
        prepare=lambda: Command(
            (sys.executable, "-m", "gunicorn", *options, "nylorun.wsgi:application"),
            env=environment,
            pass_fds=(listener.fileno(),),
        ),
        ready=lambda pid: probes.http_status(port, "/readyz") == http.HTTPStatus.OK,
        grace=1.5,
    )
