"""``manage.py list_applications``: one line each; no key is ever shown."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from nylorun.access.principals import applications
from nylorun.kernel.clock import iso


class Command(BaseCommand):
    help = "List the applications: id, creation time, state."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them."""
        for principal in applications():
            ended = principal.revoked_at
            state = f"revoked {iso(ended)}" if ended is not None else "active"
            self.stdout.write(f"{principal.id}\t{iso(principal.created_at)}\t{state}")
