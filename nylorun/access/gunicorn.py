"""Hooks for the server in front: ``gunicorn --config python:nylorun.access.gunicorn nylorun.wsgi:application``.

* A header that names a person and is sent twice is refused. gunicorn joins repeated headers with a comma, and a Subject
  may hold a comma, so only here the two can be told apart: the joined value becomes an empty one, which no rule takes.
* A worker whose keyring does not open this database does not start.
"""

from __future__ import annotations

import gc
from typing import Any

from nylorun.access.keyring import require_ours

_ONCE = frozenset({"NYLORUN-SUBJECT", "NYLORUN-SCOPES"})


def post_worker_init(worker: Any) -> None:
    """Check the keyring, then settle the memory."""
    require_ours()
    # What was loaded stays for the life of the process: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()


def pre_request(worker: Any, req: Any) -> None:
    """Empty the Subject headers that were sent more than once."""
    names = [name for name, _ in req.headers]
    repeated = {name for name in _ONCE if names.count(name) > 1}
    if repeated:
        kept = [(name, value) for name, value in req.headers if name not in repeated]
        req.headers = kept + [(name, "") for name in sorted(repeated)]
