"""The floor of a request: a bare WSGI callable with a psycopg pool, behind the same server as the API.

``/lock`` does what a found ``PUT`` must do: begin, lock the row, note its use, commit. ``/read`` reads the row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from psycopg_pool import ConnectionPool

LOCK = "SELECT * FROM environments_environment WHERE id = %s FOR NO KEY UPDATE"
USE = "UPDATE environments_environment SET last_used_at = greatest(last_used_at, clock_timestamp()) WHERE id = %s"
READ = "SELECT * FROM environments_environment WHERE id = %s"

_pool: ConnectionPool | None = None


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer after the statements of the path."""
    global _pool
    if _pool is None:
        _pool = ConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=12, open=True)
    key = "bench"
    with _pool.connection() as connection:
        if environ["PATH_INFO"] == "/lock":
            connection.execute(LOCK, [key]).fetchone()
            connection.execute(USE, [key])
        else:
            connection.execute(READ, [key]).fetchone()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", "2")])
    return [b"{}"]
