"""What a worker checks before it takes its first message."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from nylorun.access.keyring import require_ours

ROOT = Path(__file__).parents[2]


@pytest.mark.django_db(transaction=True)
def test_a_worker_with_another_keyring_does_not_start() -> None:
    """E-69: as an API with the wrong keyring; what it would seal nobody could read."""
    require_ours()  # makes the canary
    parameters = connection.get_connection_params()
    environment = {
        **os.environ,
        "DATABASE_URL": f"postgresql://{parameters.get('user', '')}@/{parameters['dbname']}?host={parameters['host']}",
        "DJANGO_SETTINGS_MODULE": "nylorun.settings.worker",
        "NYLORUN_KEYRING": base64.b64encode(bytes(32)).decode(),
    }
    command = [sys.executable, "-m", "celery", "-A", "workers.celery", "worker", "--pool=threads", "--concurrency=1"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "The keyring cannot open the canary" in ended.stderr
