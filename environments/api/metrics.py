"""What ``/metrics`` says of rows, read at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from environments.services.sweep import census, oldest_deletion
from nylorun.db.tx import database_now
from nylorun.http.metrics import REGISTRY
from nylorun.record import outbox

WAKE_SECONDS = Histogram(
    "nylorun_wake_seconds",
    "From the wish for a pod's start to its Engine's join.",
    buckets=(0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300),
    registry=REGISTRY,
)


def environments() -> Iterator[Metric]:
    """Environments by kind and state, and the age of the oldest deletion."""
    family = GaugeMetricFamily("nylorun_environments", "Environments by kind and state.", labels=["kind", "state"])
    for (kind, state), number in sorted(census().items()):
        family.add_metric([kind, state], number)
    yield family
    yield GaugeMetricFamily(
        "nylorun_oldest_deletion_seconds",
        "Age of the oldest deletion whose machine is still going.",
        value=oldest_deletion(database_now()),
    )


def promises() -> Iterator[Metric]:
    """The outbox: how much waits, how much is parked, how old the oldest due row is."""
    waiting, parked, age = outbox.depth(database_now())
    yield GaugeMetricFamily("nylorun_outbox_rows", "Outbox rows that wait for their work.", value=waiting)
    yield GaugeMetricFamily("nylorun_outbox_parked_rows", "Outbox rows that wait for an operator.", value=parked)
    yield GaugeMetricFamily("nylorun_outbox_oldest_seconds", "Age of the oldest due outbox row.", value=age)
