"""Tells the supervisor of one machine that this worker takes work. Imported by `celery worker --include workers.ready`.

Once the consumer waits for messages, the worker writes its process number to the file NYLORUN_READY_FILE names.
"""

import os
from pathlib import Path

from celery.signals import worker_ready


@worker_ready.connect
def tell(**_: object) -> None:
    """Write the number whole: to a draft, then renamed."""
    name = os.environ.get("NYLORUN_READY_FILE")
    if name:
        draft = Path(f"{name}.draft")
        draft.write_text(str(os.getpid()))
        draft.rename(name)
