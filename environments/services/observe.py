"""Where the world enters the ledger: what a reconcile reads, and how it writes back.

A look is read without a lock; its result is written only under the row's lock and only while ``rev``, ``k8s_name``,
``desired`` and ``host_epoch`` are what the decision saw, else the caller decides again at once. Columns, events and the
outbox row of the run itself are one commit; actions on the machine follow it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from environments import lifecycle
from environments.compute.contract import SandboxSpec
from environments.models import Environment
from environments.reconcile import Apply, Delete, Look, Step, Trigger, World, decide
from environments.services import dispatch, recoveries, seeds, snapshots
from environments.services.rows import Facts, facts_of, hold_row, later
from nylorun.db.tx import Tx, transact
from nylorun.record import events, outbox
from nylorun.tenant.store import installation_id

TOPIC = "reconcile"
_LONGEST_SILENCE = 60.0


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses a new pod is told."""

    engine_url: str
    egress_url: str
    egress_ca: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a row: what the decision will read of it, and the wishes its outbox row had."""

    row: Environment
    facts: Facts
    posts: int | None
    misses: int

    @property
    def names(self) -> tuple[str, str | None]:
        """The Sandbox objects to ask the Driver for: the current one, and one that is being retired."""
        return str(self.row.k8s_name), self.row.retiring


@dataclass(frozen=True, slots=True)
class Work:
    """What follows a write-back: actions on the machine, and whether to decide again at once."""

    actions: tuple[SandboxSpec | Delete, ...] = ()
    again_at_once: bool = False


def look_at(environment_id: str) -> Seen | None:
    """Read a pod's row for a reconcile; ``None`` when there is no machine to look after."""
    row = Environment.objects.named(environment_id).filter(kind="pod").first()
    if row is None:
        _forget(environment_id)
        return None
    posts = outbox.posts_of(f"{TOPIC}:{environment_id}")
    misses = outbox.payload_of(f"{TOPIC}:{environment_id}").get("misses", 0) if posts is not None else 0
    return Seen(row, facts_of(row), posts, misses)


def record(
    seen: Seen,
    world: World,
    *,
    trigger: Trigger,
    start_deadline: timedelta,
    places: Places,
    randomness: Callable[[int], bytes] = secrets.token_bytes,
) -> Work:
    """Decide by what was seen and write it back; a moved fence writes nothing and asks to decide again."""

    def work(tx: Tx) -> Work:
        row = hold_row(tx, seen.row.id, to_delete=True)
        if row is None or row.uid != seen.row.uid:
            return Work()
        if _fence(row) != _fence(seen.row):
            return Work(again_at_once=True)
        facts = facts_of(row, tx)
        copy_first = trigger == "idle" and snapshots.applies(row)
        idle = facts.idle(row.applied)
        step = decide(Look(row, world, facts.now, idle, start_deadline, facts.busy, trigger, copy_first))
        return _write(tx, row, facts, step, seen, places, randomness, trigger)

    return transact(work)


def _write(
    tx: Tx,
    row: Environment,
    facts: Facts,
    step: Step,
    seen: Seen,
    places: Places,
    randomness: Callable[[int], bytes],
    trigger: Trigger,
) -> Work:
    if step.remove:
        row.delete()
        outbox.settle(tx, f"{TOPIC}:{seen.row.id}", seen.posts)
        return Work()
    token = _rotate(step, row, randomness)
    if step.patch:
        row.write(**step.patch, updated_at=later(row.updated_at, facts.now))
    for type, payload in step.events:
        events.append(tx, row.id, row.noun, type, payload)
    if step.patch.get("observed") == "lost":
        recoveries.queue_if_asked(tx, row, facts.now)
    if step.snapshot and not dispatch.unfinished(row, "snapshot"):
        snapshots.before_suspend(tx, row, facts, "idle")
    _settle(tx, row.id, step, seen, trigger)
    actions = tuple(
        action if isinstance(action, Delete) else _spec(row, facts, action, token, places) for action in step.actions
    )
    return Work(actions, again_at_once=step.again == 0)


def _settle(tx: Tx, environment_id: str, step: Step, seen: Seen, trigger: Trigger) -> None:
    again = step.again
    misses = 0
    if step.silent and again is not None:
        misses = seen.misses + 1
        again = min(again * 2 ** min(seen.misses, 10), _LONGEST_SILENCE)
    if again is None:
        if trigger == "reconcile":
            outbox.settle(tx, f"{TOPIC}:{environment_id}", seen.posts)
        return
    payload = {"environmentId": environment_id, "trigger": "reconcile", "misses": misses}
    outbox.keep(tx, TOPIC, environment_id, payload, posts=seen.posts, again_in=again)


def _fence(row: Environment) -> tuple[Any, ...]:
    return row.rev, row.k8s_name, row.desired, row.host_epoch


def _rotate(step: Step, row: Environment, randomness: Callable[[int], bytes]) -> str | None:
    """A new join token for an object that did not exist: its hash is committed before the Driver sees the token."""
    if not any(isinstance(action, Apply) and action.rotate for action in step.actions):
        return None
    token = randomness(32).hex()
    step.patch["join_token_hash"] = hashlib.sha256(token.encode()).hexdigest()
    step.patch["rev"] = (row.rev or 0) + 1
    return token


def _spec(row: Environment, facts: Facts, action: Apply, token: str | None, places: Places) -> SandboxSpec:
    recipe = row.applied
    resources = recipe.get("resources", {})
    network = recipe.get("network")
    return SandboxSpec(
        name=str(row.k8s_name),
        op_id=lifecycle.op_id(row.k8s_name, row.rev),
        installation=installation_id(),
        uid=str(row.uid),
        environment_id=row.id,
        mode=action.mode,
        image=recipe.get("image") or facts.settings.image,
        cpus=int(resources.get("cpus", 2)),
        memory_mib=int(str(resources.get("memory", "1024MiB")).removesuffix("MiB")),
        storage_gib=int(str(recipe.get("storage", "5GiB")).removesuffix("GiB")),
        network=tuple(network["allow"]) if network else None,
        harness=recipe["harness"],
        env={},
        join_token=token,
        seed=seeds.key_of(row.disk_seed),
        grace_seconds=facts.settings.stop_grace.total_seconds(),
        engine_url=places.engine_url,
        egress_url=places.egress_url,
        egress_ca=places.egress_ca,
    )


def _forget(environment_id: str) -> None:
    """Drop the outbox row of an Environment that has no machine any more."""
    key = f"{TOPIC}:{environment_id}"
    posts = outbox.posts_of(key)
    if posts is not None:
        transact(lambda tx: outbox.settle(tx, key, posts))
