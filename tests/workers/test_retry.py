"""The one rule of failure for tasks, and what is counted of their runs."""

from __future__ import annotations

from typing import Any

import pytest

from nylorun.db.tx import transact
from nylorun.kernel.errors import Retry
from nylorun.record import outbox
from nylorun.record.models import OutboxMessage
from tests.support.client import Api
from workers import retry
from workers.retry import under_retry_rule
from workers.routing import ROUTES


class Task:
    """A bound Celery task as the rule sees it."""

    name = "workers.reconcile"

    def __init__(self) -> None:
        self.request = type("Request", (), {"args": ["demo"], "delivery_info": {"routing_key": "control"}})()
        self.again: list[dict[str, Any]] = []

    def apply_async(self, **options: Any) -> None:
        """Note a message that was sent again."""
        self.again.append(options)


@pytest.fixture(autouse=True)
def keep_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task gives its connection back; the test's transaction needs it."""
    monkeypatch.setattr(retry, "connections", type("Kept", (), {"close_all": staticmethod(lambda: None)}))


def fails(*args: str) -> None:
    raise ValueError("broken")


def later(*args: str) -> None:
    raise Retry("another worker reconciles it", seconds=0.5)


@pytest.mark.django_db
def test_a_failure_is_counted_on_its_row_and_the_message_is_done() -> None:
    """E-114: the outbox row keeps its own time; nothing raises into Celery."""
    transact(lambda tx: outbox.post(tx, "reconcile", "demo", {}))
    task = Task()
    under_retry_rule(task, fails, "demo", row="reconcile:demo")
    row = OutboxMessage.objects.get()
    assert (row.attempts, row.last_error, task.again) == (1, "ValueError: broken", [])


@pytest.mark.django_db
def test_later_is_no_failure() -> None:
    """Another worker has it: the same message again, a little later, nothing counted."""
    transact(lambda tx: outbox.post(tx, "reconcile", "demo", {}))
    task = Task()
    under_retry_rule(task, later, "demo", row="reconcile:demo")
    assert task.again == [{"args": ["demo"], "countdown": 0.5, "queue": "control"}]
    assert OutboxMessage.objects.get().attempts == 0


def test_runs_are_shown_by_the_api(api: Api) -> None:
    """Task latency is part of ``/metrics`` although workers are other processes."""
    under_retry_rule(Task(), lambda: None)
    text = api.get("/metrics").body.decode()
    assert 'nylorun_task_seconds_count{task="workers.reconcile"}' in text
    assert 'nylorun_task_seconds_bucket{le="+Inf",task="workers.reconcile"}' in text


def test_every_topic_has_a_task_that_takes_ids_only() -> None:
    """E-270: arguments are ids, never a plan."""
    from workers.celery import TASKS, app

    for module in TASKS:
        __import__(module)
    assert {route.task for route in ROUTES.values()} <= set(app.tasks)
    named = {argument for route in ROUTES.values() for argument in route.arguments}
    assert named == {"environmentId", "trigger", "operationId", "uid", "key"}
