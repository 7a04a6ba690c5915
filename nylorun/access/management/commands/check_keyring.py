"""``manage.py check_keyring``: fails unless this process's keyring opens what this database holds.

Run it before the processes of an installation start. The first run on a new database makes the canary. It speaks of the
keyring it was started with, and names where that came from: a process that runs already may have another.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from nylorun import config
from nylorun.access import keyring
from nylorun.kernel.keys import FILE, KeyringError


class Command(BaseCommand):
    help = "Check that NYLORUN_KEYRING and TENANT_ID belong to this database."

    def handle(self, *args: Any, **options: Any) -> None:
        """Open the canary."""
        try:
            with connection.cursor() as cursor:
                fault = keyring.canary_fault(cursor)
        except KeyringError as error:
            raise CommandError(f"NYLORUN_KEYRING: {error}") from error
        if fault is not None:
            raise CommandError(f"The keyring {_source()} {fault}.")
        keys = keyring.current().kek_ids
        count = "1 key" if len(keys) == 1 else f"{len(keys)} keys"
        self.stdout.write(
            f"ok: the keyring {_source()} ({count}, active {keys[0][:12]}) opens this database;"
            " processes that run may have been started with another one"
        )


def _source() -> str:
    setting = config.current().keyring
    return (
        f"of the file {setting.removeprefix(FILE)}" if setting.startswith(FILE) else "in the variable NYLORUN_KEYRING"
    )
