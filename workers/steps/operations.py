"""Running one attempt of an Operation: read (its start is a commit) -> act (no transaction) -> report (one commit).

A worker that dies is followed by another: what it had decided stands in the row, its Engine calls ended with their
connections, and what it wrote to the archive is found there again or collected later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from django.db import DatabaseError

from environments.compute.channel import EngineChannel, run_bash
from environments.compute.contract import Answer, Interrupted, NoAnswer, NotAccepted
from environments.compute.copying import CopyFailed, Target, TooManyEntries, swap
from environments.errors import DiskCopyFailed, EnvironmentUnavailable
from environments.services import (
    dispatch,
    endings,
    forks,
    operations,
    recoveries,
    seeds,
    setups,
    snapshots,
    variables,
    versions,
    waits,
)
from environments.services.operations import Attempt, Standing
from environments.services.setups import CommandFailed
from environments.services.versions import Copied
from environments.services.workplace import Workplace
from environments.tools import disk
from environments.tools.files import workspace_of, write_input_files
from environments.tools.keeper import Keeper, Stopped
from environments.tools.machines import is_filled, pods_available
from environments.tools.serve import channel_of
from environments.tools.twin import Twin
from manifests.services import content
from manifests.store import current_store
from nylorun import config
from nylorun.blobs import BlobDamaged, BlobMissing, StoreUnavailable, TreeTooLarge
from nylorun.db.tx import transact
from nylorun.http.waiting import release
from nylorun.kernel.clock import monotonic, pause
from nylorun.kernel.errors import ApiError, ByteLimitExceeded, ServiceUnavailable
from nylorun.kernel.sealing import Unreadable
from nylorun.record import outbox

COMMAND_MS = 15 * 60 * 1000
FIRST_LOOK, LONGEST_LOOK = 0.02, 0.5
REPORT_SECONDS = 60.0
_FINAL = frozenset({"tool.no_space", "tool.too_large"})


def run_operation(operation_id: str) -> None:
    """Run one attempt, if it is this worker's to run."""
    key = key_of(operation_id)
    posts = outbox.posts_of(key)
    if dispatch.kind_of(operation_id) == "recover":
        recoveries.advance(operation_id, tenant=config.current().tenant_id)
    attempt = operations.begin(operation_id)
    if attempt is not None:
        _run(attempt)
    transact(lambda tx: outbox.settle(tx, key, posts))


def key_of(operation_id: str) -> str:
    """The dedupe key of the outbox row that asks for its runs."""
    return f"{dispatch.topic_of(dispatch.kind_of(operation_id))}:{operation_id}"


def _run(attempt: Attempt) -> None:
    with Keeper(attempt) as keeper:
        try:
            _RUNNERS[attempt.kind](attempt, keeper)
        except (Stopped, forks.FenceMoved):
            keeper.look()
        except Unreadable as error:
            _unless_stopped(keeper, partial(operations.put_back, attempt, str(error), error))
        except (NotAccepted, Interrupted, NoAnswer, StoreUnavailable, ServiceUnavailable, DatabaseError) as error:
            _unless_stopped(keeper, partial(operations.put_back, attempt, str(error)))
        except CopyFailed as error:
            _unless_stopped(keeper, partial(_copy_failed, attempt, error))
        except ApiError as error:
            _unless_stopped(keeper, partial(operations.fail, attempt, error))
        except Exception:
            _unless_stopped(keeper, partial(operations.put_back, attempt, "an internal error, which was logged"))
            raise
    _leave(attempt, keeper.standing)


def _leave(attempt: Attempt, standing: Standing) -> None:
    """End what was cancelled; give back what was claimed after the Operation was ended by others."""
    if standing is Standing.OURS or (standing is Standing.CANCELLED and operations.end_cancelled(attempt)):
        return
    if attempt.kind in endings.COPIES:
        versions.release_late(attempt.operation_id)


def _unless_stopped(keeper: Keeper, report: Callable[[], bool]) -> None:
    """Report why the attempt ended; what a stopped one met is no failure, since its calls were ended on purpose.

    A report that is refused, since the fence has moved, leaves the keeper knowing so.

    A database that is away is waited for: else the Operation would stand still until its lease has lapsed.
    """
    deadline = monotonic() + REPORT_SECONDS
    while keeper.standing is Standing.OURS:
        try:
            if not report():
                keeper.look()
        except (ServiceUnavailable, DatabaseError):
            release()
            if monotonic() > deadline:
                raise
            pause(LONGEST_LOOK)
        else:
            return


def _copy_failed(attempt: Attempt, error: CopyFailed) -> bool:
    if isinstance(error, TooManyEntries):
        return operations.fail(attempt, _too_many(disk.FILES_MAX))
    if error.code in _FINAL:
        return operations.fail(attempt, DiskCopyFailed(error.message))
    return operations.put_back(attempt, error.message)


def _too_many(most: int) -> ByteLimitExceeded:
    return ByteLimitExceeded(
        f"A Disk version may have {most} files and folders.", details={"limit": "files", "max": most}
    )


# ------------------------------------------------------------------------------------------------------------ copying


def _snapshot(attempt: Attempt, keeper: Keeper) -> None:
    with Twin(attempt.call) as twin:
        tree = _copy_out(attempt, keeper, twin)
        if not snapshots.finish(attempt, tree):
            raise Stopped
        _settle(attempt, twin)


def _settle(attempt: Attempt, twin: Twin) -> None:
    """The commit was this attempt's: its twin is that of the version, unless the disk was unchanged."""
    for key in versions.made_by([attempt.operation_id]):
        twin.settle(key)


def _copy_out(attempt: Attempt, keeper: Keeper, twin: Twin) -> Copied:
    place = _wait_for_engine(attempt, keeper)
    channel = channel_of(place)
    if place.fresh and place.files:
        failed = write_input_files(channel, place, f"{attempt.call}.files", place.files)
        if failed is not None:
            raise DiskCopyFailed(failed.message or "an input file could not be written")
    previous, damaged = versions.latest_root(attempt.uid)
    try:
        return disk.copy_out(
            _target(attempt, place, keeper),
            store=current_store(),
            claim=partial(content.claim, attempt.operation_id),
            previous=previous,
            heal=damaged,
            most_bytes=place.disk_bytes,
            hold=place.kind == "pod",
            progress=keeper.progress,
            twin=twin.of(place),
        )
    except TreeTooLarge as error:
        raise _too_many(error.max) if error.limit == "files" else _too_large(error.max) from error


def _too_large(most: int) -> ByteLimitExceeded:
    return ByteLimitExceeded(
        f"A Disk version may have {most} bytes.", details={"limit": "versionBytes", "limitBytes": most}
    )


def _fill(attempt: Attempt, keeper: Keeper) -> None:
    """Write the version into the new disk, or beside a virtual one and in its place."""
    if not seeds.written(attempt):
        root = versions.root_of(attempt.data["artifactId"], attempt.data["version"])
        if root is None:
            raise DiskCopyFailed("its Disk version is gone")
        if is_filled(attempt.workplace, versions.holder_of(attempt.data["artifactId"], attempt.data["version"])):
            operations.note(attempt, copied="reflink")
        else:
            _copy_in(attempt, keeper, root)
    seeds.finish(attempt)


def _copy_in(attempt: Attempt, keeper: Keeper, root: str) -> None:
    target = _target(attempt, attempt.workplace, keeper)
    stage = attempt.call.replace(".", "-") if attempt.workplace.kind == "virtual" else None
    try:
        disk.copy_in(target, store=current_store(), root=root, stage=stage, progress=keeper.progress)
    except (BlobMissing, BlobDamaged) as error:
        versions.note_damage(root)
        raise DiskCopyFailed(str(error)) from error
    if stage is not None:
        keeper.require()
        swap(target, stage)


def _fork(attempt: Attempt, keeper: Keeper) -> None:
    number = attempt.data.get("version")
    if attempt.lease is not None:
        with Twin(attempt.call) as twin:
            number = forks.keep_copy(attempt, _copy_out(attempt, keeper, twin))
            if number is None:
                raise Stopped
            _settle(attempt, twin)
    attempt = replace(attempt, lease=None)
    keeper.require()
    forks.create(attempt, number, pods=pods_available(), tenant=config.current().tenant_id)


def _target(attempt: Attempt, place: Workplace, keeper: Keeper) -> Target:
    where = workspace_of(place)
    return Target(
        channel_of(place),
        epoch=place.epoch,
        copy=attempt.operation_id,
        attempt=attempt.attempt,
        workspace=where.get("workspace"),
        limits=where.get("limits"),
        cancel=keeper.stop,
        before_call=keeper.require,
    )


def _wait_for_engine(attempt: Attempt, keeper: Keeper) -> Workplace:
    """Where the Engine is once the Environment is ready; raises why it never will be."""
    deadline = monotonic() + config.current().start_deadline_seconds
    step = FIRST_LOOK
    while True:
        place = waits.look(attempt)
        release()
        if place is not None:
            return place
        if monotonic() > deadline:
            raise EnvironmentUnavailable(f"Environment {attempt.environment_id} did not start in time.")
        if pause(step, keeper.stop):
            raise Stopped
        step = min(step * 1.5, LONGEST_LOOK)


# -------------------------------------------------------------------------------------------------------------- setup


def _setup(attempt: Attempt, keeper: Keeper) -> None:
    channel, taken = channel_of(attempt.workplace), variables.opened(attempt.noted)
    failure = _files(channel, attempt) or _commands(channel, attempt, keeper, taken)
    if keeper.stop.is_set():
        raise Stopped
    if failure is None:
        setups.succeed(attempt)
    else:
        setups.fail(attempt, failure)


def _files(channel: EngineChannel, attempt: Attempt) -> CommandFailed | None:
    entries = attempt.applied.get("files", ())
    failed = write_input_files(channel, attempt.workplace, f"{attempt.call}.0", entries)
    return None if failed is None else CommandFailed(0, 1, failed.message or "")


def _commands(
    channel: EngineChannel, attempt: Attempt, keeper: Keeper, taken: variables.Variables
) -> CommandFailed | None:
    for number, command in enumerate(attempt.applied.get("setup", ()), start=1):
        answer = run_bash(
            channel,
            command,
            env=taken.under({}),
            timeout_ms=COMMAND_MS,
            call_id=f"{attempt.call}.{number}",
            epoch=attempt.workplace.epoch,
            cancel=keeper.stop,
        )
        failure = None if keeper.stop.is_set() else _failure(number, answer)
        if failure is not None:
            return replace(failure, output=taken.mask(failure.output))
        if keeper.stop.is_set():
            return None
    return None


def _failure(number: int, answer: Answer) -> CommandFailed | None:
    if answer.kind == "failed":
        return CommandFailed(number, 126, answer.message or "")
    output = answer.output or {}
    code = output.get("exitCode")
    if code == 0:
        return None
    tail = f"{output.get('stdout', '')}{output.get('stderr', '')}"
    return CommandFailed(number, code if isinstance(code, int) else 126, tail)


_RUNNERS: Mapping[str, Callable[[Attempt, Keeper], None]] = {
    "snapshot": _snapshot,
    "fork": _fork,
    "seed": _fill,
    "restore": _fill,
    "recover": _fill,
    "setup": _setup,
}
