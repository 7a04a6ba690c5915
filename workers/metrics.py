"""How long tasks run: counted by the workers in Redis, shown by the API with everything else.

Workers are other processes than the one that is scraped, so their counts go through Redis. Losing them with Redis
starts the counters again, as the restart of a process does. A count that cannot be written is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import cast

import redis
from prometheus_client.core import HistogramMetricFamily, Metric

from nylorun import config

log = logging.getLogger(__name__)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
_KEY = "nylorun:task_seconds"


def observe(task: str, seconds: float) -> None:
    """Count one run of a task."""
    bucket = next((bound for bound in BUCKETS if seconds <= bound), None)
    try:
        with _redis().pipeline(transaction=False) as pipeline:
            pipeline.hincrby(_KEY, f"{task}|{'+Inf' if bucket is None else bucket}", 1)
            pipeline.hincrbyfloat(_KEY, f"{task}|sum", seconds)
            pipeline.execute()
    except redis.RedisError as error:
        log.debug("a run of %s was not counted: %s", task, error)


def seconds() -> Iterator[Metric]:
    """The histogram of every task that ran, for a scrape."""
    counts: dict[str, dict[str, float]] = {}
    stored = cast("dict[bytes, bytes]", _redis().hgetall(_KEY))
    for field, value in stored.items():
        task, _, part = field.decode().partition("|")
        counts.setdefault(task, {})[part] = float(value)
    family = HistogramMetricFamily("nylorun_task_seconds", "How long tasks ran, by name.", labels=["task"])
    for task, parts in sorted(counts.items()):
        running, buckets = 0.0, []
        for name in [*map(str, BUCKETS), "+Inf"]:
            running += parts.get(name, 0.0)
            buckets.append((name, running))
        family.add_metric([task], buckets, parts.get("sum", 0.0))
    yield family


@lru_cache(maxsize=1)
def _redis() -> redis.Redis:
    return redis.Redis.from_url(config.current().redis_url, socket_timeout=0.5, socket_connect_timeout=0.5)
