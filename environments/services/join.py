"""A pod's Engine joins: from here on the pod is running, and every token of an earlier pod is refused.

* :func:`check_join` looks before anything is asked of the Driver; :func:`join` decides under the row's lock, with what
  the Driver said in between.
* A join with another volume id than the recorded one says that the volume was replaced: the Environment is lost.
* Every refusal is one opaque 401; its reason is only logged.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from environments import lifecycle
from environments.compute.contract import SandboxStatus
from environments.errors import JoinRefused
from environments.models import Environment
from environments.services import recoveries, seeds, setups
from environments.services.dispatch import run_waiting
from environments.services.rows import apply_change, hold_row, later
from nylorun.db.tx import Tx, transact
from nylorun.record import events

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Join:
    """What an Engine says of itself."""

    environment_id: str
    pod_uid: str
    join_token: str
    volume_id: str | None
    address: str


@dataclass(frozen=True, slots=True)
class Joined:
    """What tokens of the joined pod bear."""

    environment_id: str
    epoch: int
    pod_uid: str
    waited: float | None = None
    """Seconds from the wish for this start to its join; ``None`` when no start ends here."""


def check_join(request: Join) -> str:
    """Refuse what cannot be right without asking anybody; returns the Sandbox object's name to ask the Driver for."""
    row = Environment.objects.live().named(request.environment_id).filter(kind="pod").first()
    _require(row, request)
    return str(row.k8s_name) if row is not None else ""


def join(request: Join, status: SandboxStatus) -> Joined:
    """Write the join in one commit; ``status`` is what the Driver reports for the pod's name."""
    if status.pod_uid != request.pod_uid or status.address != request.address:
        raise _refused(request, "the Driver reports another pod or address")

    def work(tx: Tx) -> Joined | None:
        row = hold_row(tx, request.environment_id)
        _require(row, request)
        if row is None or row.k8s_name != status.name:
            raise _refused(request, "the pod is of an earlier volume")
        now = tx.now()
        if row.volume_id is not None and row.volume_id != request.volume_id:
            change = lifecycle.lose(row, "volume_replaced")
            apply_change(tx, row, change, updated_at=later(row.updated_at, now))
            recoveries.queue_if_asked(tx, row, now)
            return None
        starts = row.pod_uid is None and row.started_at is not None
        waited = (now - row.started_at).total_seconds() if starts and row.started_at else None
        _write(tx, row, request, status, now)
        return Joined(row.id, row.host_epoch or 0, request.pod_uid, waited)

    joined = transact(work)
    if joined is None:
        raise _refused(request, "the volume was replaced")
    return joined


def renew(environment_id: str, *, epoch: int, pod_uid: str) -> Joined:
    """The Engine of this epoch is still there: notes it, or refuses when the row moved on."""

    def work(tx: Tx) -> Joined:
        row = hold_row(tx, environment_id)
        current = row is not None and row.live and row.desired == "running" and row.observed != "lost"
        if row is None or not current or row.host_epoch != epoch or row.pod_uid != pod_uid:
            log.info("renewal of %s refused: its epoch, pod or state moved", environment_id)
            raise JoinRefused
        row.write(engine_seen_at=later(row.engine_seen_at, tx.now()))
        return Joined(row.id, epoch, pod_uid)

    return transact(work)


def _write(tx: Tx, row: Environment, request: Join, status: SandboxStatus, now: datetime) -> None:
    event = None if row.pod_uid == request.pod_uid else ("running" if row.pod_uid is None else "relaunched")
    patch: dict[str, Any] = {
        "host_epoch": (row.host_epoch or 0) + 1,
        "pod_uid": request.pod_uid,
        "engine_address": request.address,
        "engine_seen_at": now,
        "observed": "running",
        "reason": None,
        "unenforced": list(status.unenforced),
        "updated_at": later(row.updated_at, now),
    }
    if row.volume_id is None:
        patch["volume_id"] = request.volume_id
    row.write(**patch)
    if event is not None:
        events.append(tx, row.id, row.noun, event, {"hostEpoch": row.host_epoch})
    seeds.queue_if_needed(tx, row, now, hand_out=False)
    setups.queue_if_needed(tx, row, now, hand_out=False)
    run_waiting(tx, row)


def _require(row: Environment | None, request: Join) -> None:
    if row is None or not row.live or row.kind != "pod":
        raise _refused(request, "no such pod")
    digest = hashlib.sha256(request.join_token.encode()).hexdigest()
    if not hmac.compare_digest(digest, row.join_token_hash or ""):
        raise _refused(request, "another join token")
    if row.desired != "running" or row.observed not in ("creating", "running"):
        raise _refused(request, f"desired {row.desired}, observed {row.observed}")


def _refused(request: Join, why: str) -> JoinRefused:
    log.info("join of %s by pod %s refused: %s", request.environment_id, request.pod_uid, why)
    return JoinRefused()
