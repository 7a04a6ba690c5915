"""The application that ``celery beat`` runs: schedules by name, without loading what the tasks do.

Beat sends messages and nothing else, so it needs neither Django nor the rooms behind the tasks.
"""

from __future__ import annotations

import os

from celery import Celery

from nylorun import config
from workers.broker import options
from workers.schedule import schedule

os.environ.pop("DJANGO_SETTINGS_MODULE", None)

_settings = config.current()

app = Celery("nylorun", broker=_settings.redis_url)
app.conf.update(options(), beat_schedule=schedule(_settings), beat_max_loop_interval=1)
