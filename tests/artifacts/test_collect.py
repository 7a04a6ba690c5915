"""The collector: what nothing named for a day goes, and no copy ever loses a blob to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import pytest
from django.db import connection

from manifests.models import Content, Unnamed
from manifests.services import collect, content
from manifests.services.collect import BLOB_GRACE, TAKEOVER, Strays, collect_due, note_strays
from nylorun.blobs import MemoryStore, StoredBlob, StoreUnavailable, blob_id, write_blob
from nylorun.db.tx import Tx, database_now
from nylorun.kernel.errors import ServiceUnavailable
from tests.artifacts.support import total_is_right
from tests.races.test_manifest_races import together
from workers.steps import sweeps

pytestmark = pytest.mark.django_db(transaction=True)

WAIT = 20
DATA = b"content that two copies need" * 100
BLOB = blob_id(DATA)


def copy(store: MemoryStore, holder: str = "op_copy", data: bytes = DATA) -> None:
    """What a copy does with one blob: name it, then store it unless it is there."""
    content.claim(holder, [(blob_id(data), len(data))])
    write_blob(store, data)


def elsewhere(work: Callable[[], Any]) -> Any:
    """Run ``work`` on a connection of its own; what it returned or raised."""
    (outcome,) = together(1, lambda index: work())
    return outcome


def unnamed_for_a_day(store: MemoryStore, clock: Any) -> None:
    """A blob that a version named once and that is due."""
    copy(store, "op_old")
    content.remove_rows(["op_old"])
    clock.advance(hours=24, seconds=1)


def test_a_blob_goes_after_a_day_without_a_name(store: MemoryStore, clock: Any) -> None:
    """E-288: counted from the removal of its last row, not from when it was stored or noticed."""
    copy(store, "op_a")
    clock.advance(days=3)
    assert collect.collect(store).removed == 0
    content.remove_rows(["op_a"])
    clock.advance(hours=23, minutes=59)
    assert collect.collect(store).removed == 0
    assert store.has(BLOB)
    clock.advance(minutes=1)
    assert collect.collect(store).removed == 1
    assert (store.has(BLOB), Unnamed.objects.count()) == (False, 0)


def test_the_day_begins_again_with_every_name(store: MemoryStore, clock: Any) -> None:
    """E-288: named for a moment, it stays for another day."""
    copy(store, "op_a")
    content.remove_rows(["op_a"])
    clock.advance(hours=23)
    copy(store, "op_b")
    assert Unnamed.objects.count() == 0
    content.remove_rows(["op_b"])
    clock.advance(hours=23)
    assert collect.collect(store).removed == 0
    clock.advance(hours=1, seconds=1)
    assert collect.collect(store).removed == 1


def test_strays_are_found_by_listing(store: MemoryStore, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-288: blobs that no row ever named, as after a restored database, are noted once and go a day later."""
    monkeypatch.setattr(collect, "LIST_BATCH", 3)
    strays = [write_blob(store, b"stray %d" % index) for index in range(7)]
    copy(store, "op_a")
    assert (note_strays(store), note_strays(store)) == (7, 0)
    assert collect_due(store) == 0
    clock.advance(hours=24)
    copy(store, "op_b", b"stray 3")
    assert collect_due(store) == 6
    assert {blob.key for blob in store.list()} == {BLOB, strays[3]}
    assert total_is_right()


class Listed(MemoryStore):
    """A store that counts its listings, and does not answer while it is ``away``."""

    def __init__(self) -> None:
        super().__init__()
        self.listings, self.away = 0, False

    def list(self) -> Iterator[StoredBlob]:
        self.listings += 1
        for blob in super().list():
            if self.away:
                raise StoreUnavailable("away")
            yield blob


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The process's clock, set by the test."""
    now = [0.0]
    monkeypatch.setattr(collect, "monotonic", lambda: now[0])
    return now


def test_strays_are_listed_in_pieces_once_a_period(moment: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """E-288: bounded work each time, every blob once, then nothing for a day."""
    monkeypatch.setattr(collect, "LIST_BATCH", 3)
    store, strays = Listed(), Strays(timedelta(days=1))
    for index in range(7):
        write_blob(store, b"stray %d" % index)
    assert [strays.note(store, seconds=0) for _ in range(4)] == [3, 3, 1, 0]
    assert (strays.note(store, seconds=30), store.listings, Unnamed.objects.count()) == (0, 1, 7)
    write_blob(store, b"later")
    moment[0] += 86_399
    assert (strays.note(store, seconds=30), store.listings) == (0, 1)
    moment[0] += 1
    assert (strays.note(store, seconds=30), store.listings, Unnamed.objects.count()) == (1, 2, 8)


def test_a_listing_that_failed_begins_again(moment: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """E-288: at the next piece; a day is counted from a listing that came to its end."""
    monkeypatch.setattr(collect, "LIST_BATCH", 3)
    store, strays = Listed(), Strays(timedelta(days=1))
    for index in range(7):
        write_blob(store, b"stray %d" % index)
    assert strays.note(store, seconds=0) == 3
    store.away = True
    with pytest.raises(StoreUnavailable):
        strays.note(store, seconds=0)
    store.away = False
    assert (strays.note(store, seconds=30), store.listings, Unnamed.objects.count()) == (4, 2, 7)


def test_two_threads_never_read_one_listing(store: MemoryStore, moment: list[float]) -> None:
    """E-288: the second does nothing."""
    strays, waiting, go = Strays(timedelta(days=1)), Event(), Event()
    write_blob(store, b"stray")

    class Slow(MemoryStore):
        def list(self) -> Iterator[StoredBlob]:
            waiting.set()
            assert go.wait(WAIT)
            return store.list()

    found: list[int] = []
    first = Thread(target=lambda: found.append(elsewhere(lambda: strays.note(Slow(), seconds=30))))
    first.start()
    assert waiting.wait(WAIT)
    assert strays.note(store, seconds=30) == 0
    go.set()
    first.join(WAIT)
    assert found == [1]


def test_the_sweep_notes_strays(store: MemoryStore, monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    """E-288: what a restored database does not know is gone a day after the sweep saw it."""
    monkeypatch.setattr(sweeps, "_strays", Strays(timedelta(days=1)))
    monkeypatch.setattr(sweeps, "STEPS", sweeps.STEPS[sweeps.STEPS.index(sweeps.unnamed_content) :])
    blob = write_blob(store, b"stray")
    sweeps.sweep()
    clock.advance(hours=24)
    assert store.has(blob)
    sweeps.sweep()
    assert not store.has(blob)


def test_a_note_that_is_named_again_is_dropped(store: MemoryStore, clock: Any) -> None:
    """E-288: what a listing noted while a copy named it is looked at again before it goes."""
    copy(store, "op_a")
    Unnamed.objects.create(blob=BLOB, since=database_now() - timedelta(days=9))
    assert collect_due(store) == 0
    assert (store.has(BLOB), Unnamed.objects.count()) == (True, 0)


def test_the_removal_of_the_last_name_begins_the_day(store: MemoryStore) -> None:
    """E-288: whatever an older note says."""
    copy(store, "op_a")
    Unnamed.objects.create(blob=BLOB, since=database_now() - timedelta(days=9))
    content.remove_rows(["op_a"])
    assert database_now() - Unnamed.objects.get().since < timedelta(minutes=1)
    assert collect_due(store) == 0


class Steps(MemoryStore):
    """A store that runs something before and after each removal."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def delete(self, key: str) -> None:
        self.before()
        super().delete(key)
        self.after()


PHASES = ("before the note", "after the note", "under the mark's lock", "after the mark", "before the object goes",
          "after the object went", "before it is forgotten", "after it is forgotten")  # fmt: skip


@pytest.fixture
def phase(monkeypatch: pytest.MonkeyPatch, clock: Any) -> Callable[[str, Steps, Callable[[], None]], None]:
    """Runs a whole collection of a stray blob and ``act`` in the middle of it, at one phase."""

    def run(name: str, store: Steps, act: Callable[[], None]) -> None:
        left = [act]

        def maybe(at: str) -> None:
            if at == name and left:
                left.pop()()

        def wrapped(real: Any, before: str, after: str) -> Any:
            def step(tx: Tx, **options: Any) -> Any:
                maybe(before)
                result = real(tx, **options)
                maybe(after)
                return result

            return step

        monkeypatch.setattr(collect, "_mark", wrapped(collect._mark, "", "under the mark's lock"))
        monkeypatch.setattr(collect, "_forget", wrapped(collect._forget, "before it is forgotten", ""))
        real_delete = collect._delete

        def delete(*args: Any) -> int:
            maybe("after the mark")
            return real_delete(*args)

        monkeypatch.setattr(collect, "_delete", delete)
        store.before, store.after = (lambda: maybe("before the object goes")), (lambda: maybe("after the object went"))
        write_blob(store, DATA)
        maybe("before the note")
        note_strays(store)
        maybe("after the note")
        clock.advance(hours=25)
        collect_due(store)
        maybe("after it is forgotten")

    return run


@pytest.mark.parametrize("name", PHASES)
def test_a_copy_never_loses_a_blob_to_the_collector(name: str, phase: Any) -> None:
    """E-288: begun at any moment of a collection, a copy either keeps its blob or is told to come again."""
    store, outcomes, waiting = Steps(), [], []

    def begin() -> None:
        if name == "under the mark's lock":  # it can only end when the lock is free
            ready = Event()
            thread = Thread(target=lambda: (ready.set(), outcomes.append(elsewhere(lambda: copy(store)))))
            thread.start()
            assert ready.wait(WAIT)
            waiting.append(thread)
        else:
            outcomes.append(elsewhere(lambda: copy(store)))

    phase(name, store, begin)
    for thread in waiting:
        thread.join(WAIT)
    (outcome,) = outcomes
    if isinstance(outcome, ServiceUnavailable):
        assert name in PHASES[2:7]
        assert not Content.objects.exists()
        copy(store)
    else:
        assert outcome is None
    assert (store.has(BLOB), Content.objects.get().blob) == (True, BLOB)
    collect.collect(store, grace=timedelta(0))
    assert (store.get(BLOB) is not None, total_is_right()) == (True, True)


def test_a_copy_that_meets_a_blob_going_writes_nothing(store: MemoryStore) -> None:
    """E-288: the whole batch is refused with 503, and can be sent again."""
    Unnamed.objects.create(blob=BLOB, since=database_now(), going=True)
    with pytest.raises(ServiceUnavailable):
        content.claim("op_a", [("0" * 64, 5), (BLOB, 7)])
    assert not Content.objects.exists()
    assert Unnamed.objects.get().going


class Killed(BaseException):
    """The process ends here."""


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("name", PHASES)
def test_a_killed_collector_is_followed_by_another(name: str, phase: Any, clock: Any) -> None:
    """E-288, pain 8: whatever step it died in, the next one ends the work; what was marked waits ten minutes."""
    store = Steps()
    with pytest.raises(Killed):
        phase(name, store, kill)
    connection.close()
    marked = Unnamed.objects.filter(going=True).exists()
    assert marked == (name in PHASES[3:7])
    collect.collect(store)
    if marked:
        assert Unnamed.objects.filter(going=True).exists()
        clock.advance(seconds=TAKEOVER.total_seconds())
        collect.collect(store)
    clock.advance(hours=25)
    collect.collect(store)
    assert (store.has(BLOB), Unnamed.objects.count()) == (False, 0)


def test_a_late_collector_deletes_nothing_any_more(store: MemoryStore, clock: Any, monkeypatch: Any) -> None:
    """E-288: a minute after its mark it stops, long before another one may take the blob over."""
    unnamed_for_a_day(store, clock)
    moments = iter([0.0, 0.0, 0.0, 61.0, 61.0])
    monkeypatch.setattr(collect, "monotonic", lambda: next(moments))
    assert collect_due(store) == 0
    assert store.has(BLOB)
    assert timedelta(seconds=collect.DELETE_SECONDS) * 5 < TAKEOVER
    assert Unnamed.objects.get().going


def test_a_collector_forgets_only_what_it_marked_itself(store: MemoryStore, clock: Any) -> None:
    """E-288: one that comes back after a takeover leaves the other's marks alone."""
    steps = Steps()
    unnamed_for_a_day(steps, clock)

    def taken_over() -> None:
        Unnamed.objects.update(since=database_now() + timedelta(minutes=20))

    steps.after = taken_over
    collect_due(steps)
    assert Unnamed.objects.get().going


def test_a_store_that_fails_stops_the_collector(store: MemoryStore, clock: Any, monkeypatch: Any) -> None:
    """E-288: what was deleted is forgotten, the rest is tried again after the takeover."""
    for index in range(5):
        copy(store, f"op_{index}", b"%d" % index)
    content.remove_rows([f"op_{index}" for index in range(5)])
    clock.advance(hours=25)
    real, left = store.delete, [3]

    def failing(key: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoreUnavailable("away")
        real(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "delete", failing)
        with pytest.raises(StoreUnavailable):
            collect_due(store)
    assert (Unnamed.objects.count(), len(list(store.list()))) == (2, 2)
    assert collect_due(store) == 0
    clock.advance(minutes=10)
    assert collect_due(store) == 2


def test_collection_goes_in_batches_and_stops_in_time(
    store: MemoryStore, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-288: no commit and no pass is longer than it may be."""
    monkeypatch.setattr(collect, "BATCH", 4)
    for index in range(10):
        copy(store, "op_a", b"%d" % index)
    content.remove_rows(["op_a"])
    clock.advance(seconds=BLOB_GRACE.total_seconds())
    assert collect_due(store, seconds=0) == 0
    sizes: list[int] = []
    real = collect._forget
    monkeypatch.setattr(
        collect, "_forget", lambda tx, *, blobs, at: (sizes.append(len(blobs)), real(tx, blobs=blobs, at=at))
    )
    assert collect_due(store) == 10
    assert sizes == [4, 4, 2]


def test_copies_and_collectors_at_once(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-288: with no grace at all, what a copy claimed and stored is there until its release."""
    monkeypatch.setattr(collect, "BATCH", 3)
    monkeypatch.setattr(content, "REMOVE_BATCH", 3)
    pool = [b"shared content %d" % index for index in range(12)]
    refused: list[int] = []

    def copying(index: int) -> None:
        pick = random.Random(index)
        for turn in range(40):
            holder, mine = f"op_{index}_{turn}", pick.sample(pool, 4)
            try:
                content.claim(holder, [(blob_id(data), len(data)) for data in mine])
            except ServiceUnavailable:
                refused.append(index)
                continue
            names = [write_blob(store, data) for data in mine]
            for name in names * 3:
                assert store.has(name), "a claimed blob is gone"
            content.remove_rows([holder])

    def collecting(index: int) -> None:
        for _ in range(60):
            collect.collect(store, grace=timedelta(0))

    outcomes = together(5, lambda index: collecting(index) if index < 2 else copying(index))
    assert outcomes == [None] * 5
    collect.collect(store, grace=timedelta(0))
    assert (list(store.list()), Unnamed.objects.count(), total_is_right()) == ([], 0, True)
