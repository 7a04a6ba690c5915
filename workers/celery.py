"""The Celery application of the workers, and of every process that sends tasks."""

from __future__ import annotations

import os
import sys
from typing import Any

from celery import Celery
from celery.signals import worker_init

from nylorun import config
from workers.broker import options

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nylorun.settings.worker")

TASKS = ["workers.tasks.relay", "workers.tasks.pods", "workers.tasks.operations", "workers.tasks.sweeps"]
"""Loaded by the worker once Django's applications are; a sender needs only their names."""

app = Celery("nylorun", broker=config.current().redis_url, include=TASKS)
app.conf.update(options())


@worker_init.connect
def check_keyring(**_: Any) -> None:
    """A worker whose keyring does not open this database does not start; Celery only logs what a receiver raises."""
    from nylorun.access.keyring import require_ours  # noqa: PLC0415 a sender of tasks has no need of Django
    from nylorun.kernel.sealing import KeyringError  # noqa: PLC0415

    try:
        require_ours()
    except KeyringError as error:
        sys.exit(str(error))
