"""What a worker under a supervisor does once it takes work. Imported by `celery worker --include workers.ready`.

It writes its process number to the file NYLORUN_READY_FILE names, and takes over what its predecessor of the same name
had in hand: the supervisor starts another one only when that is gone. With NYLORUN_NICE it steps back by so many
degrees, so that copies of disks leave the processor to calls: what it starts later is as nice.
"""

import os
from pathlib import Path

from celery.signals import worker_ready
from django.db import connections

from environments.services.dispatch import take_over
from nylorun import config


@worker_ready.connect
def tell(**_: object) -> None:
    """Write the number whole: to a draft, then renamed."""
    os.nice(int(os.environ.get("NYLORUN_NICE", "0")))
    take_over(config.current().worker)
    connections.close_all()
    name = os.environ.get("NYLORUN_READY_FILE")
    if name:
        draft = Path(f"{name}.draft")
        draft.write_text(str(os.getpid()))
        draft.rename(name)
