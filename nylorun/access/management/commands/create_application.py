"""``manage.py create_application <id>``: prints the new key, and nothing else, on standard output."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nylorun.access.principals import create_application
from nylorun.kernel.errors import Refusal


class Command(BaseCommand):
    help = "Make an application and print its key, once."

    def add_arguments(self, parser: CommandParser) -> None:
        """The id, and whether an existing key may be ended."""
        parser.add_argument("id")
        parser.add_argument("--replace", action="store_true", help="give an existing application a new key")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make it."""
        try:
            key = create_application(options["id"], replace=options["replace"])
        except Refusal as refusal:
            raise CommandError(refusal.message) from refusal
        self.stdout.write(key)
