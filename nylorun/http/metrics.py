"""Counters of this process for Prometheus, and the place where rooms further up add theirs.

One process serves the API (threads, not forks), so the numbers of ``/metrics`` are the numbers of the API. Values that
live in rows (outbox, Environments by state) are read by a *source* at the moment of the scrape; a source that fails is
left out of that scrape and counted in ``nylorun_metric_source_failures_total``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from django.http import HttpRequest
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import Metric

log = logging.getLogger(__name__)

Source = Callable[[], Iterable[Metric]]

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry(auto_describe=False)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_requests = Counter("nylorun_http_requests", "Requests answered.", ["method", "route", "status"], registry=REGISTRY)
_seconds = Histogram(
    "nylorun_http_request_seconds", "Time until the answer's headers were ready.", ["method", "route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60), registry=REGISTRY,
)  # fmt: skip
_failures = Counter(
    "nylorun_metric_source_failures", "Sources that could not be read at a scrape.", ["source"], registry=REGISTRY
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"})


class _Sources:
    """A collector that asks every registered source at each scrape."""

    def __init__(self) -> None:
        self.named: dict[str, Source] = {}

    def collect(self) -> Iterator[Metric]:
        for name, source in self.named.items():
            try:
                found = list(source())
            except Exception:  # one source may not take the others with it
                log.exception("metric source %s failed", name)
                _failures.labels(name).inc()
                continue
            yield from found


_sources = _Sources()
REGISTRY.register(_sources)


def add_source(name: str, source: Source) -> None:
    """Ask ``source`` for metrics at each scrape; a second one of the same name replaces the first."""
    _sources.named[name] = source


def count(request: HttpRequest, status: int, seconds: float) -> None:
    """Note one answered request under its route's pattern, never under its path: ids are no labels."""
    match = request.resolver_match
    route = "/" + match.route if match is not None and match.route else "unknown"
    method = request.method if request.method in _METHODS else "other"
    _requests.labels(method, route, str(status)).inc()
    _seconds.labels(method, route).observe(seconds)


def text() -> bytes:
    """Everything, in the Prometheus text format."""
    return generate_latest(REGISTRY)
