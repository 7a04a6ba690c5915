"""What every Celery application of this installation has in common.

* JSON only, acknowledged late, one message at a time, and time limits everywhere.
* The broker's redelivery time (``visibility_timeout``) lies above the longest task, so a message is delivered twice
  only when its worker died; tasks are safe to run twice anyway.
* No results are kept: what a task did stands in rows.
* A broker that is away never blocks a sender for long: sockets time out in half a second, publishing is not retried.
"""

from __future__ import annotations

from typing import Any

from kombu.entity import Queue

QUEUES = ("control", "disk", "setup", "sweep")
LONGEST_TASK = 6 * 3600
"""Setup: fifty commands of fifteen minutes are cut off here; the sweep starts the Operation again."""


def options() -> dict[str, Any]:
    """Settings of a Celery application."""
    return {
        "task_serializer": "json",
        "accept_content": ["json"],
        "result_backend": None,
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_default_queue": "control",
        "task_queues": [Queue(name) for name in QUEUES],
        "task_time_limit": LONGEST_TASK,
        "task_create_missing_queues": False,
        "task_publish_retry": False,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_pool_limit": 4,
        "broker_transport_options": {
            "visibility_timeout": LONGEST_TASK + 1800,
            "socket_connect_timeout": 0.5,
            "socket_timeout": 5,
            "retry_on_timeout": False,
            "max_retries": 0,
        },
        "timezone": "UTC",
    }
