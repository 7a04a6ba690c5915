"""Reading: one view, lists by label, the events of an id. Nothing here locks, writes or counts as use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from environments.models import LIVE, Effect, Environment, rows
from environments.services.present import etag, present
from environments.services.rows import Facts, facts_of
from nylorun.kernel.errors import NotFound
from vault.services.listing import secret_names_of_many

PAGE = 200


def read_environment(environment_id: str) -> tuple[dict[str, Any], str]:
    """The view and its ETag; missing or being deleted is the opaque 404."""
    row = live_row(environment_id)
    return present(row, facts_of(row)), etag(row)


def live_row(environment_id: str) -> Environment:
    """The live row, unlocked: what it says may have changed by the time it is read."""
    row = rows().one(environment_id, where=LIVE)
    if row is None:
        raise NotFound
    return row


def list_page(labels: dict[str, str], after: str, size: int) -> list[dict[str, Any]]:
    """Up to ``size`` views of live rows with every label, by id, beginning after the id ``after``."""
    found = list(Environment.objects.live().labelled(labels).filter(pk__gt=after).order_by("pk")[:size])
    held = secret_names_of_many(row.uid for row in found if row.recipe.get("secrets"))
    return [present(row, facts, held.get(row.uid, ())) for row, facts in _with_facts(found)]


def _with_facts(found: Sequence[Environment]) -> Iterator[tuple[Environment, Facts]]:
    common = facts_of(None)
    uids = [row.uid for row in found if row.kind != "none"]
    busy = set(Effect.objects.busy_among(uids, common.now))
    for row in found:
        yield row, replace(common, busy=row.uid in busy)
