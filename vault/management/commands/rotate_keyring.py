"""``manage.py rotate_keyring``: wrap the data key of everything sealed with the active key.

The course of a change of keys: add the new key as the second of the ring and start every process with it; make it the
first and start every process again; run this command; take the old key out of the ring when the list at the end names
it no more. Values are never decrypted, ciphertexts stay. It may be stopped at any moment and run again.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from nylorun.access import keyring
from nylorun.kernel.keys import KeyringError
from vault.services.rotation import kek_ids_in_use, rewrap_all

BATCH = 200


class Command(BaseCommand):
    help = "Wrap every sealed value's data key with the active key of the keyring, in resumable batches."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """``--batch``."""
        parser.add_argument("--batch", type=int, default=BATCH, help="rows read at a time")

    def handle(self, *args: Any, batch: int, **options: Any) -> None:
        """Rewrap, say how far it is, and list the keys in use at the end; fails when a row could not be read."""
        if batch < 1:
            raise CommandError("--batch: must be at least 1")
        try:
            ring = keyring.current()
        except KeyringError as error:
            raise CommandError(f"NYLORUN_KEYRING: {error}") from error
        unreadable = self._rewrap(batch)
        for kek_id, rows in sorted(kek_ids_in_use().items()):
            state = (
                "active" if kek_id == ring.active else "in the ring" if kek_id in ring.kek_ids else "NOT IN THE RING"
            )
            counts = ", ".join(f"{table} {count}" for table, count in sorted(rows.items()))
            self.stdout.write(f"in use: {kek_id} ({state}): {counts}")
        if unreadable:
            raise CommandError(f"{unreadable} rows could not be read with this keyring and were left as they are.")

    def _rewrap(self, batch: int) -> int:
        done: Counter[str] = Counter()
        unreadable = 0
        for step in rewrap_all(batch):
            done[step.table] += step.rewrapped
            unreadable += step.unreadable
            self.stdout.write(f"{step.table}: {done[step.table]} rewrapped")
        return unreadable
