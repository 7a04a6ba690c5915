"""Every static check, in one process that says which one failed: ``python -m tests.house.check [--write]``.

``--write`` writes the generated pages instead of comparing them. The order is from cheap to dear; all of them run, so
that one look shows everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("nylorun", "environments", "manifests", "vault", "workers", "tests/support", "tests/house", "manage.py")
SETTINGS = {
    "DATABASE_URL": "postgresql://nylorun@localhost/nylorun",
    "REDIS_URL": "redis://localhost:6379/0",
    "SECRET_KEY": "only-for-checks",
    "NYLORUN_KEYRING": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    "NYLORUN_DRIVER": "fake",
    "DJANGO_SETTINGS_MODULE": "nylorun.settings.test",
}
CHECKS: dict[str, list[str]] = {
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "lint": ["ruff", "check", "--quiet", "."],
    "contracts": ["lint-imports"],
    "migrations": ["python", "-W", "ignore", "manage.py", "makemigrations", "--check", "--dry-run"],
    "system": ["python", "manage.py", "check", "--fail-level", "WARNING"],
    "generated pages": ["python", "-m", "tests.house.pages"],
    "types": ["mypy", *PLACES],
}


def main(arguments: list[str]) -> int:
    """Run every check; the number of those that failed."""
    environment = {**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT)}
    bin_folder = Path(sys.executable).parent
    if "--write" in arguments:
        return subprocess.run(
            [sys.executable, "-m", "tests.house.pages", "--write"], cwd=ROOT, env=environment, check=False
        ).returncode
    failed = []
    for name, (program, *options) in CHECKS.items():
        done = subprocess.run(
            [str(bin_folder / program), *options],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"{'ok    ' if done.returncode == 0 else 'FAILED'} {name}", flush=True)
        if done.returncode != 0:
            failed.append(name)
            print(done.stdout + done.stderr, flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
