"""The sweep: what no message reached. Every step is bounded; a failing one does not stop the others.

The first error is raised at the end, so that an operator sees it and the next beat tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from environments.compute.channel import EngineChannel
from environments.compute.contract import Interrupted, NoAnswer, NotAccepted
from environments.compute.registry import registry
from environments.services import calls, dispatch, versions
from environments.services import sweep as rows
from manifests.services import content
from manifests.services.collect import Strays, collect_due
from manifests.store import current_store
from nylorun import config
from nylorun.db.tx import transact
from nylorun.kernel.clock import monotonic
from nylorun.record import outbox, replay
from nylorun.tenant.store import installation_id
from workers.steps.relay import drain

log = logging.getLogger(__name__)

BUDGET = 30.0
ORPHAN_AGE = 600.0
ABANDONED = timedelta(days=1)
ORPHAN_KEEP = 7 * 86_400.0
PING_SECONDS = 2.0
REMOVE_SECONDS = 300.0


class _Sightings:
    """Workspaces without a row that the last pass saw: only what is seen so twice is removed."""

    workspaces: frozenset[UUID] = frozenset()


_strays = Strays(timedelta(days=1))


def sweep() -> None:
    """Every step in its order."""
    first: Exception | None = None
    for step in STEPS:
        try:
            step()
        except Exception as error:
            log.exception("sweep step %s failed", step.__name__)
            first = first or error
    if first is not None:
        raise first


def lapsed_operations() -> None:
    """Start again what a dead worker left, and what is due."""
    dispatch.hand_out_due()


def ended_operations() -> None:
    """Operations that ended long ago, and what copies that made no version had claimed."""
    while dispatch.remove_ended() > 0:
        continue
    versions.release_abandoned(ABANDONED)
    versions.remove_orphaned()


def unnamed_content() -> None:
    """Uploads that died, and blobs that no row has named for a day."""
    content.release_stale_uploads()
    collect_due(current_store(), seconds=BUDGET)


def stray_blobs() -> None:
    """Blobs that no row ever named, as a database restored from a backup leaves them: noted, about once a day."""
    _strays.note(current_store(), seconds=BUDGET)


def old_answers() -> None:
    """Answers kept for a repeat, a day later."""
    while replay.remove_old() > 0:
        continue


def lapsed_calls() -> None:
    """Calls whose process is gone make nothing busy; their rows go."""
    while calls.remove_lapsed() > 0:
        continue


def stray_workspaces() -> None:
    """Virtual workspaces whose ``uid`` no row has, seen so twice: removed."""
    channel = EngineChannel(config.current().virtual_engine)
    try:
        answer = channel.call("list_workspaces", {}, call_id="sweep", epoch=0, time_limit_s=REMOVE_SECONDS)
    except (NotAccepted, Interrupted):
        return
    listed = (answer.output or {}).get("workspaces")
    found = {UUID(uid) for uid in listed} if isinstance(listed, dict) else set()
    unknown = frozenset(rows.unknown_workspaces(found))
    for uid in sorted(unknown & _Sightings.workspaces):
        drop_workspace(uid)
    _Sightings.workspaces = unknown


def stale_pods() -> None:
    """Pods that should have moved by now are looked at; quiet Engines are pinged first."""
    for environment_id in rows.stale_pods(timedelta(seconds=config.current().stale_row_seconds)):
        rows.ask_for_look(environment_id)
    for engine in rows.quiet_engines():
        if answers(engine.address):
            rows.engine_answered(engine.environment_id, engine.epoch)
        else:
            rows.ask_for_look(engine.environment_id)


def orphaned_objects() -> None:
    """Sandbox objects of this installation that no row names: the machine goes first, its volume a week later."""
    settings = config.current()
    driver = registry.driver(settings.driver, settings.data_dir, installation_id())
    try:
        listing = driver.list()
    except NoAnswer:
        return
    known = rows.known_pod_names()
    for name in sorted((listing.objects.keys() | listing.volumes.keys()) - known):
        age = max(listing.objects.get(name, 0.0), listing.volumes.get(name, 0.0))
        if name in listing.objects and age >= ORPHAN_AGE:
            log.warning("removing the machine %s that no row names", name)
            driver.delete(name, keep_volume=True)
        elif name not in listing.objects and age >= ORPHAN_KEEP:
            log.warning("removing the volume %s that no row names", name)
            driver.delete(name)


def kept_disks() -> None:
    """Kept disks whose version is gone."""
    settings = config.current()
    keeps = registry.driver(settings.driver, settings.data_dir, installation_id()).keeps
    if keeps is not None:
        keys = keeps.tidy()
        keeps.drop(keys - versions.made_by(keys))


def delete_unused() -> None:
    """Delete what was unused for its ``deleteAfter``, batch after batch, for at most 30 s."""
    deadline = monotonic() + BUDGET
    while monotonic() < deadline:
        candidates = rows.unused_candidates()
        _delete(candidates)
        if len(candidates) < rows.BATCH:
            return


def _delete(environment_ids: Sequence[str]) -> None:
    """One commit for a batch; one that fails is tried row by row, so that a single row never holds up the others."""
    try:
        rows.delete_unused(environment_ids)
    except Exception:
        if len(environment_ids) == 1:
            raise
        log.exception("a batch of %d unused Environments failed; each is tried alone", len(environment_ids))
        for environment_id in environment_ids:
            rows.delete_unused([environment_id])


STEPS: tuple[Callable[[], object], ...] = (
    drain,
    lapsed_operations,
    lapsed_calls,
    stray_workspaces,
    stale_pods,
    orphaned_objects,
    kept_disks,
    delete_unused,
    ended_operations,
    unnamed_content,
    stray_blobs,
    old_answers,
)


def remove_workspace(uid: str) -> None:
    """Remove one workspace and settle the outbox row that asked for it."""
    key = f"workspace.remove:{uid}"
    posts = outbox.posts_of(key)
    drop_workspace(UUID(uid))
    transact(lambda tx: outbox.settle(tx, key, posts))


def remove_content(key: str) -> None:
    """Remove the content rows of deleted versions and failed copies; settles the outbox row that asked for it."""
    content.remove(key)


def drop_workspace(uid: UUID) -> None:
    """Have the virtual Engine remove a workspace for good; raises when it does not answer."""
    channel = EngineChannel(config.current().virtual_engine)
    answer = channel.call(
        "drop", {}, call_id=f"drop-{uid}", epoch=0, time_limit_s=REMOVE_SECONDS, workspace=str(uid), limits={}
    )
    if answer.kind != "completed":
        raise NoAnswer(f"workspace {uid} could not be removed: {answer.message}")


def answers(address: str) -> bool:
    """Whether the Engine at this address answers a ping."""
    try:
        answer = EngineChannel(address).call("ping", {}, call_id="ping", epoch=0, time_limit_s=PING_SECONDS)
    except (NotAccepted, Interrupted):
        return False
    return answer.kind == "completed"
