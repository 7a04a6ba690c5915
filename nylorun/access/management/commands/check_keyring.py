"""``manage.py check_keyring``: fails unless this process's keyring opens what this database holds.

Run it before the processes of an installation start. The first run on a new database makes the canary.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from nylorun.access.keyring import canary_fault
from nylorun.kernel.sealing import KeyringError


class Command(BaseCommand):
    help = "Check that NYLORUN_KEYRING and TENANT_ID belong to this database."

    def handle(self, *args: Any, **options: Any) -> None:
        """Open the canary."""
        try:
            with connection.cursor() as cursor:
                fault = canary_fault(cursor)
        except KeyringError as error:
            raise CommandError(f"NYLORUN_KEYRING: {error}") from error
        if fault is not None:
            raise CommandError(f"The keyring {fault}.")
        self.stdout.write("ok")
