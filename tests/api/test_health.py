"""Health, readiness and metrics: bounded, remembered, and honest about what does not answer."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from prometheus_client.core import GaugeMetricFamily

from manifests import store
from nylorun import config
from nylorun.blobs import MemoryStore, StoreUnavailable
from nylorun.http import health, metrics
from nylorun.http.health import Probe
from nylorun.kernel.clock import monotonic
from tests.support.client import Api

READY = {"database": "ok", "broker": "ok", "migrations": "ok", "keyring": "ok", "blobs": "ok", "copies": "portable"}
AWAY = {**dict.fromkeys(READY, "does not answer"), "blobs": "ok", "copies": "portable"}
LATE = 3.5  # two seconds, and what a busy machine adds


class Time:
    """A clock that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def fresh_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_database", Probe(health._look_at_database, health._database_names))
    monkeypatch.setattr(health, "_broker", Probe(health._look_at_broker, lambda: ["broker"]))
    monkeypatch.setattr(health._Probes, "named", {})
    health.add_check("blobs", store.check)


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """A server that takes connections and never answers, like one that was stopped."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()


@pytest.fixture
def closed() -> tuple[str, int]:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: tuple[str, int] = listener.getsockname()
    return address


def point_database(monkeypatch: pytest.MonkeyPatch, address: tuple[str, int]) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", address[0])
    monkeypatch.setitem(connection.settings_dict, "PORT", str(address[1]))


def point_broker(monkeypatch: pytest.MonkeyPatch, address: tuple[str, int]) -> None:
    moved = dataclasses.replace(config.current(), redis_url=f"redis://{address[0]}:{address[1]}/0")
    monkeypatch.setattr(config, "current", lambda: moved)


# --- health and readiness


def test_a_running_process_is_healthy() -> None:
    """E-232: /healthz asks nobody."""
    answer = Api().get("/healthz")
    assert (answer.status, answer.json) == (200, {"status": "ok"})


@pytest.mark.django_db(transaction=True)
def test_a_process_that_can_work_is_ready() -> None:
    """E-232: database, broker, migrations, keyring and the store of blobs."""
    answer = Api().get("/readyz")
    assert (answer.status, answer.json) == (200, {"status": "ready", "checks": READY})
    assert answer.headers["Cache-Control"] == "no-store"
    assert Api().head("/readyz").status == 200


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("says", ["reflink", "anything"])
def test_a_note_makes_nobody_unready(monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    """How disks are copied is said; a machine that copies them from the archive is as ready."""
    monkeypatch.setattr(health._Notes, "named", {})
    health.add_note("copies", lambda: says)
    answer = Api().get("/readyz")
    assert (answer.status, answer.json) == (200, {"status": "ready", "checks": {**READY, "copies": says}})


@pytest.mark.django_db(transaction=True)
def test_a_missing_migration_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-232: a process newer than its database is not ready."""
    known = health._known_migrations()
    monkeypatch.setattr(health, "_known_migrations", lambda: known | {("access", "9999_next")})
    answer = Api().get("/readyz")
    assert (answer.status, answer.json) == (503, {"status": "unready", "checks": {**READY, "migrations": "1 to apply"}})


def test_stopped_servers_are_told_within_two_seconds(monkeypatch: pytest.MonkeyPatch, silent: tuple[str, int]) -> None:
    """E-232: a server that stands still costs two seconds, not a hanging request; both are looked at together."""
    point_database(monkeypatch, silent)
    point_broker(monkeypatch, silent)
    began = monotonic()
    answer = Api().get("/readyz")
    assert monotonic() - began < LATE
    assert (answer.status, answer.json["status"]) == (503, "unready")
    assert {answer.json["checks"][name] for name in ("database", "broker")} == {"timeout"}
    assert set(answer.json["checks"]) == set(READY)
    assert Api().get("/healthz").status == 200


def test_absent_servers_are_told_at_once(monkeypatch: pytest.MonkeyPatch, closed: tuple[str, int]) -> None:
    """E-232: nobody listens."""
    point_database(monkeypatch, closed)
    point_broker(monkeypatch, closed)
    checks = Api().get("/readyz").json["checks"]
    assert checks == AWAY


@pytest.mark.django_db(transaction=True)
def test_a_store_that_fails_is_told_without_its_reason() -> None:
    """E-232: what is wrong with it is for the log; strangers may ask /readyz."""

    class Broken(MemoryStore):
        def check(self) -> None:
            raise StoreUnavailable("/secret/place: permission denied")

    with store.override(Broken()):
        answer = Api().get("/readyz")
    assert (answer.status, answer.json["checks"]) == (503, {**READY, "blobs": "does not answer"})


def test_an_answer_is_kept_for_a_second() -> None:
    """E-232: readiness may be asked as often as one likes."""
    time, looks = Time(), []
    probe = Probe(lambda: looks.append(1) or {"x": "ok"}, lambda: ["x"], time)  # type: ignore[func-returns-value]
    for moment in (100.0, 100.5, 100.99):
        time.now = moment
        assert probe.answers() == {"x": "ok"}
    assert len(looks) == 1
    time.now = 101.0
    assert probe.answers() == {"x": "ok"}
    assert len(looks) == 2


def test_a_look_that_hangs_runs_once_and_its_answer_is_taken_later() -> None:
    """E-232: requests that meet a hanging look are answered; no second thread is started."""
    time, looks, go = Time(), [], threading.Event()

    def look() -> dict[str, str]:
        looks.append(threading.current_thread())
        go.wait(10)
        return {"x": "ok"}

    probe = Probe(look, lambda: ["x"], time, bound=0.05)
    assert probe.answers() == {"x": "timeout"}
    time.now += 60
    began = monotonic()
    assert [probe.answers() for _ in range(20)] == [{"x": "timeout"}] * 20
    assert monotonic() - began < 1
    go.set()
    looks[0].join(10)
    assert probe.answers() == {"x": "ok"}
    assert len(looks) == 1


def test_a_check_that_breaks_is_a_check_that_fails() -> None:
    """E-232: a bug in a check never takes the answer away."""
    probe = Probe(lambda: {"x": str(1 / 0)}, lambda: ["x", "y"])
    assert probe.answers() == {"x": "error", "y": "error"}


# --- metrics


def samples(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def scrape() -> dict[str, float]:
    answer = Api().get("/metrics")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return samples(answer.body.decode())


def test_requests_are_counted_by_route_and_never_by_path(db: Any) -> None:
    """E-232: counters and latencies under the route's pattern: no id becomes a label."""
    name = 'nylorun_http_requests_total{method="GET",route="/v1/me",status="404"}'
    unknown = 'nylorun_http_requests_total{method="GET",route="unknown",status="404"}'
    other = 'nylorun_http_requests_total{method="other",route="/v1/me",status="405"}'
    before = scrape()
    Api().get("/v1/me")
    Api().get("/v1/secret-name-1")
    Api().get("/v1/secret-name-2")
    Api().request("BREW", "/v1/me")
    after = scrape()
    assert [after[key] - before.get(key, 0) for key in (name, unknown, other)] == [1, 2, 1]
    assert after['nylorun_http_request_seconds_count{method="GET",route="/v1/me"}'] >= 1
    assert not any("secret-name" in key for key in after)


def test_rooms_further_up_add_their_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-232: a source is asked at each scrape; one that fails takes nothing else with it."""
    monkeypatch.setattr(metrics._sources, "named", {})
    depth = iter([3, 4])

    def source() -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("nylorun_test_depth", "Rows.", value=next(depth))]

    def broken() -> list[GaugeMetricFamily]:
        raise OSError("away")

    metrics.add_source("test", source)
    metrics.add_source("broken", broken)
    assert [scrape()["nylorun_test_depth"] for _ in range(2)] == [3, 4]
    assert samples(metrics.text().decode())['nylorun_metric_source_failures_total{source="broken"}'] >= 2
