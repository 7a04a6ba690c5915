"""``manage.py blobs verify|gc|stats``: look after the store of blobs. Exit status 1 when something is wrong."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from manifests.services.collect import collect
from manifests.services.verify import Verification, stats
from manifests.store import current_store
from nylorun.blobs import Store, StoreUnavailable


class Command(BaseCommand):
    help = "Verify every stored version, remove blobs that nothing has named for a day, or count what is stored."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One action."""
        parser.add_argument("action", choices=("verify", "gc", "stats"))

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the action."""
        actions = {"verify": self._verify, "gc": self._collect, "stats": self._stats}
        try:
            actions[options["action"]](current_store())
        except StoreUnavailable as error:
            raise CommandError(f"The store of blobs does not work: {error}") from error

    def _verify(self, store: Store) -> None:
        verification, problems = Verification(store), 0
        for problem in verification:
            problems += 1
            self.stdout.write(problem)
        self.stdout.write(f"{verification.versions} versions, {verification.blobs} blobs, {problems} problems")
        if problems:
            raise CommandError("Not everything is whole: restore the missing blobs from a backup, then verify again.")

    def _collect(self, store: Store) -> None:
        done = collect(store)
        self.stdout.write(f"{done.removed} blobs removed, {done.noted} found that nothing names")

    def _stats(self, store: Store) -> None:
        found = stats(store)
        self.stdout.write(f"stored blobs       {found.stored_blobs}")
        self.stdout.write(f"stored bytes       {found.stored}")
        self.stdout.write(f"named blobs        {found.named_blobs}")
        self.stdout.write(f"raw bytes          {found.raw}")
        self.stdout.write(f"versions           {found.versions}")
        self.stdout.write(f"unnamed blobs      {found.unnamed}")
        self.stdout.write(f"Tenant byte total  {found.total}")
