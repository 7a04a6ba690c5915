"""Many Environments at once: laid and removed by SQL, read and swept by the product."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import psycopg

LAY = """
INSERT INTO environments_environment
  (id, uid, kind, noun, labels, recipe, applied, version, applied_version, manifest_hash,
   last_used_at, created_at, updated_at, delete_check_at)
SELECT %(prefix)s || lpad(n::text, 7, '0'), gen_random_uuid(), 'none', 'environment',
       jsonb_build_object('team', 't' || (n %% greatest(%(count)s / 100, 1))),
       %(recipe)s::jsonb, %(recipe)s::jsonb, 1, 1, 'sha256:x',
       now() - interval '2 hours', now() - interval '2 hours', now() - interval '2 hours', %(check)s
FROM generate_series(1, %(count)s) AS n
"""
VAULTS = """
INSERT INTO vault_vault (id, environment_uid, created_at)
SELECT gen_random_uuid(), uid, now() FROM environments_environment WHERE id LIKE %s
"""
SWEEP = """
import json, time, django
django.setup()
from environments.services import sweep
from workers.steps import sweeps
started, before = time.monotonic(), len(sweep.unused_candidates(1_000_000))
sweeps.delete_unused()
print(json.dumps([before - len(sweep.unused_candidates(1_000_000)), time.monotonic() - started]))
"""


def lay(database_url: str, prefix: str, count: int, *, expired: bool = False) -> None:
    """Make ``count`` Environments of kind none, with their Vaults; ``expired`` ones are due for the sweep.

    Label ``team=t0`` is on 100 of them whatever their number, so that a page by it shows as many.
    """
    lifecycle = {"deleteAfter": "1h"} if expired else {}
    recipe = json.dumps({"harness": "nylorun", "lifecycle": lifecycle})
    with psycopg.connect(database_url) as connection:
        connection.execute(
            LAY, {"prefix": prefix, "recipe": recipe, "count": count, "check": "2000-01-01" if expired else None}
        )
        connection.execute(VAULTS, [f"{prefix}%"])
        connection.execute("UPDATE tenant_lock SET amount = amount + %s", [count])
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE environments_environment")


def clear(database_url: str, prefix: str) -> None:
    """Remove what was laid."""
    with psycopg.connect(database_url) as connection:
        gone = connection.execute("DELETE FROM environments_environment WHERE id LIKE %s", [f"{prefix}%"]).rowcount
        connection.execute("UPDATE tenant_lock SET amount = amount - %s", [gone])
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE environments_environment")


def swept_per_second(environment: dict[str, str]) -> float:
    """Rate of the sweep's own step, run in a process of the installation."""
    done = subprocess.run(
        [sys.executable, "-c", SWEEP],
        env={**os.environ, **environment, "DJANGO_SETTINGS_MODULE": "nylorun.settings.worker"},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: list[Any] = json.loads(done.stdout)
    return float(answer[0] / answer[1])
