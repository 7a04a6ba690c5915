"""Whether this process can work: checks that are bounded even when a server behind them stands still.

* A check answers ``ok`` or a reason, within ``BOUND`` seconds (else ``timeout``); its answer is kept for ``KEPT`` s.
* Each check runs in a thread of its own and at most once at a time: a server that takes connections and never answers
  costs one thread, not one per request.
* The checks of the database share one fresh connection, outside the pool: they wait for no free one and keep
  none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import psycopg
import redis
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from nylorun import config
from nylorun.kernel.clock import monotonic

BOUND = 2.0
KEPT = 1.0
OK, TIMEOUT, AWAY, ERROR = "ok", "timeout", "does not answer", "error"

Check = Callable[[], str | None]
DatabaseCheck = Callable[[Any], str | None]


@dataclass
class _Run:
    began: float
    done: threading.Event = field(default_factory=threading.Event)
    answers: dict[str, str] = field(default_factory=dict)


class Probe:
    """Runs ``look``, which answers every one of ``names``, bounded and remembered. ``clock`` counts seconds."""

    def __init__(
        self,
        look: Callable[[], dict[str, str]],
        names: Callable[[], list[str]],
        clock: Callable[[], float] = monotonic,
        bound: float = BOUND,
    ) -> None:
        self._look, self._names, self._clock, self._bound = look, names, clock, bound
        self._lock = threading.Lock()
        self._running: _Run | None = None
        self._last: tuple[float, dict[str, str]] | None = None

    def begin(self) -> _Run | None:
        """Start a look unless one runs or a kept answer is fresh (``None``)."""
        with self._lock:
            if self._last is not None and self._clock() - self._last[0] < KEPT:
                return None
            return self._running or self._start()

    def answers(self) -> dict[str, str]:
        """The answer by name: a kept one, or the one that comes within the bound."""
        run = self.begin()
        if run is None:
            return self._last[1] if self._last else {}
        left = self._bound - (self._clock() - run.began)
        if run.done.wait(max(left, 0)):
            return run.answers
        return dict.fromkeys(self._names(), TIMEOUT)

    def _start(self) -> _Run:
        run = self._running = _Run(self._clock())
        threading.Thread(target=self._work, args=(run,), name="health", daemon=True).start()
        return run

    def _work(self, run: _Run) -> None:
        try:
            run.answers = self._look()
        except Exception:  # noqa: BLE001 a check that breaks is a check that fails
            run.answers = dict.fromkeys(self._names(), ERROR)
        with self._lock:
            self._running, self._last = None, (self._clock(), run.answers)
        run.done.set()


class _DatabaseChecks:
    """What is asked of the database besides an answer; rooms further up add theirs."""

    named: dict[str, DatabaseCheck] = {}


def add_database_check(name: str, check: DatabaseCheck) -> None:
    """Ask ``check`` with a cursor in autocommit; it answers a reason, or ``None`` when all is well."""
    _DatabaseChecks.named[name] = check


class _Probes:
    """What is asked besides database and broker; rooms further up add theirs."""

    named: dict[str, Probe] = {}


def add_check(name: str, check: Check) -> None:
    """Ask ``check`` in a thread of its own; it answers a reason, or ``None`` when all is well."""
    _Probes.named[name] = Probe(lambda: {name: check() or OK}, lambda: [name])


class _Notes:
    """What is said besides, and makes nobody unready; rooms further up add theirs."""

    named: dict[str, Probe] = {}


def add_note(name: str, look: Callable[[], str]) -> None:
    """Say what ``look`` answers, in a thread of its own, beside the checks: a word about how this process works."""
    _Notes.named[name] = Probe(lambda: {name: look()}, lambda: [name])


def report() -> tuple[bool, dict[str, str]]:
    """Whether every check is ``ok``, and each answer and note by name; the probes run side by side."""
    probes, notes = [_database, _broker, *_Probes.named.values()], list(_Notes.named.values())
    for probe in (*probes, *notes):
        probe.begin()
    checks = _answers(probes)
    return all(answer == OK for answer in checks.values()), {**checks, **_answers(notes)}


def _answers(probes: list[Probe]) -> dict[str, str]:
    return {name: answer for probe in probes for name, answer in probe.answers().items()}


def _database_names() -> list[str]:
    return ["database", *_DatabaseChecks.named]


def _look_at_database() -> dict[str, str]:
    answers: dict[str, str] = {}
    parameters = connection.get_connection_params()
    for managed in ("pool", "cursor_factory", "context", "prepare_threshold", "server_side_binding"):
        parameters.pop(managed, None)
    parameters["connect_timeout"] = int(BOUND)
    try:
        with psycopg.connect(**parameters, autocommit=True) as opened, opened.cursor() as cursor:
            cursor.execute("SELECT 1")
            answers["database"] = OK
            for name, check in _DatabaseChecks.named.items():
                answers[name] = _answer(check, cursor)
    except psycopg.Error as error:
        reason = TIMEOUT if isinstance(error, psycopg.errors.ConnectionTimeout) else AWAY
        answers = {**dict.fromkeys(_database_names(), reason), **answers}
    return answers


def _answer(check: DatabaseCheck, cursor: Any) -> str:
    try:
        return check(cursor) or OK
    except Exception:  # noqa: BLE001 one check may not hide the others
        return ERROR


def _look_at_broker() -> dict[str, str]:
    url = config.current().redis_url.replace("redis+socket://", "unix://", 1)
    client = redis.Redis.from_url(url, socket_connect_timeout=BOUND, socket_timeout=BOUND)
    try:
        client.ping()
    except redis.exceptions.TimeoutError:
        return {"broker": TIMEOUT}
    except redis.exceptions.RedisError:
        return {"broker": AWAY}
    finally:
        client.close()
    return {"broker": OK}


@lru_cache(maxsize=1)
def _known_migrations() -> frozenset[tuple[str, str]]:
    return frozenset(MigrationLoader(None).graph.nodes)


def _migrations(cursor: Any) -> str | None:
    cursor.execute("SELECT app, name FROM django_migrations")
    missing = _known_migrations() - {(app, name) for app, name in cursor.fetchall()}
    return f"{len(missing)} to apply" if missing else None


add_database_check("migrations", _migrations)
_database = Probe(_look_at_database, _database_names)
_broker = Probe(_look_at_broker, lambda: ["broker"])
