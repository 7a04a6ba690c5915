"""PostgreSQL and Valkey for a test run: fast, private to one folder, and gone when the run is.

Both end when the block ends, and also when the process that opened it is killed: they are leashed to the thread that
calls `servers`, which is to be the main thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nylorun.embedded.postgres import Postgres
from nylorun.embedded.valkey import Valkey


@contextmanager
def servers(folder: Path) -> Iterator[tuple[str, str]]:
    """Run both over `folder`; the block gets (database_url, redis_url). What they keep is not safe from a power cut."""
    postgres = Postgres(folder / "postgres", durable=False)
    valkey = Valkey(folder / "valkey", durable=False)
    try:
        postgres.begin()
        valkey.begin()
        postgres.wait_ready()
        valkey.wait_ready()
        yield postgres.url, valkey.url
    finally:
        valkey.stop()
        postgres.stop()
