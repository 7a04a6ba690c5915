"""The Celery application of the workers, and of every process that sends tasks."""

from __future__ import annotations

import os

from celery import Celery

from nylorun import config
from workers.broker import options

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nylorun.settings.worker")

TASKS = ["workers.tasks.relay", "workers.tasks.pods", "workers.tasks.setup", "workers.tasks.sweeps"]
"""Loaded by the worker once Django's applications are; a sender needs only their names."""

app = Celery("nylorun", broker=config.current().redis_url, include=TASKS)
app.conf.update(options())
