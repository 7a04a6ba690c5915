"""Operations as callers see them. Nothing here locks or writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.models import Operation
from environments.services.read import live_row
from nylorun.kernel.clock import iso
from nylorun.kernel.errors import NotFound


@dataclass(frozen=True, slots=True)
class Seen:
    """An Operation as it was at one look. ``status`` is the HTTP status its request is answered with at its end."""

    id: str
    environment_id: str
    state: str
    status: int | None
    result: Mapping[str, Any] | None
    error: Mapping[str, Any]
    view: Mapping[str, Any]

    @property
    def has_ended(self) -> bool:
        """Whether it never changes again."""
        return self.state not in ("queued", "running")


def find(operation_id: str) -> Seen:
    """The Operation as it is now, or the opaque 404."""
    row = Operation.objects.filter(pk=operation_id).first()
    if row is None:
        raise NotFound
    return Seen(row.id, row.environment_id, row.state, row.http_status, row.result, row.error or {}, present(row))


def page(environment_id: str, states: Sequence[str], after: str, size: int) -> list[dict[str, Any]]:
    """Up to ``size`` Operations of a live Environment, by id, in one of ``states`` (none given: all)."""
    rows = Operation.objects.filter(environment_id=environment_id, uid=live_row(environment_id).uid, pk__gt=after)
    narrowed = rows.filter(state__in=states) if states else rows
    return [present(one) for one in narrowed.order_by("pk")[:size]]


def present(operation: Operation) -> dict[str, Any]:
    """Row to view."""
    view: dict[str, Any] = {
        "id": operation.id,
        "kind": operation.kind,
        "environmentId": operation.environment_id,
        "state": operation.state,
        "attempt": operation.attempt,
    }
    if operation.progress is not None:
        view["progress"] = operation.progress
    if operation.state == "failed" and operation.error is not None:
        view["error"] = {name: value for name, value in operation.error.items() if value}
    if operation.state == "succeeded":
        view["result"] = operation.result
    view["createdAt"] = iso(operation.created_at)
    for name, moment in (("startedAt", operation.started_at), ("finishedAt", operation.finished_at)):
        if moment is not None:
            view[name] = iso(moment)
    return view
