"""A pytest plugin: the real PostgreSQL and Valkey for a run, started before Django reads its settings.

Named servers (``DATABASE_URL`` and ``REDIS_URL`` in the environment) are used instead when both are there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from nylorun.embedded.testing import servers

_stack = ExitStack()


def _start() -> None:
    if "DATABASE_URL" in os.environ and "REDIS_URL" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="nylorun-test-"))
    _stack.callback(shutil.rmtree, folder, ignore_errors=True)
    os.environ["DATABASE_URL"], os.environ["REDIS_URL"] = _stack.enter_context(servers(folder))
    os.environ.setdefault("NYLORUN_DATA_DIR", str(folder / "data"))


_start()


def pytest_unconfigure() -> None:
    """Stop what was started."""
    _stack.close()
