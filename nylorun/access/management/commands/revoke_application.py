"""``manage.py revoke_application <id>``: its key is refused from the next request on."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nylorun.access.principals import revoke_application
from nylorun.kernel.errors import NotFound


class Command(BaseCommand):
    help = "Revoke an application's key."

    def add_arguments(self, parser: CommandParser) -> None:
        """The id."""
        parser.add_argument("id")

    def handle(self, *args: Any, **options: Any) -> None:
        """Revoke it."""
        try:
            revoke_application(options["id"])
        except NotFound as missing:
            raise CommandError(f"There is no application {options['id']}.") from missing
        self.stdout.write(f"{options['id']} revoked")
