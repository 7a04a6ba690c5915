"""Content rows: claimed before blobs are relied on, counted once each, removed in batches."""

from __future__ import annotations

import random
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from manifests.models import Artifact, ArtifactVersion, Content, Unnamed
from manifests.services import content
from nylorun.db.tx import TransactionOpen, Tx, database_now, transact
from nylorun.kernel.errors import ByteLimitExceeded
from nylorun.kernel.ids import ulid
from nylorun.record.models import OutboxMessage
from nylorun.tenant.models import TenantSetting
from nylorun.tenant.store import artifact_bytes, hold_artifact_quota
from tests.artifacts.support import keep_promises, total_is_right
from tests.races.test_manifest_races import together

pytestmark = pytest.mark.django_db(transaction=True)

WAIT = 20


def blob(number: int) -> str:
    return f"{number:064x}"


def some(*numbers: int, size: int = 10) -> list[tuple[str, int]]:
    return [(blob(number), size) for number in numbers]


def limit(**limits: int) -> None:
    TenantSetting.objects.update_or_create(
        name="artifacts.limits", defaults={"value": limits, "updated_at": "2030-01-01T00:00:00Z", "updated_by": "op"}
    )


def names(holder: str) -> list[str]:
    return list(Content.objects.filter(holder=holder).order_by("blob").values_list("blob", flat=True))


def version_of(holder: str) -> ArtifactVersion:
    """A version that names this holder."""
    artifact = Artifact.objects.create(
        id=ulid("af", database_now()), kind="file", name="a", media_type="", high_version=1, latest_version=1,
        created_at=database_now(),
    )  # fmt: skip
    return ArtifactVersion.objects.create(
        artifact=artifact, number=1, root=blob(0), size=0, file_count=0, sha256="", holder=holder,
        created_at=database_now(),
    )  # fmt: skip


def test_a_claim_counts_each_blob_once() -> None:
    """E-129: whoever names it, however often."""
    content.claim("op_a", [*some(1, 2), *some(1)])
    content.claim("op_a", some(2, 3))
    content.claim("op_b", some(3, 4))
    assert (names("op_a"), names("op_b")) == ([blob(1), blob(2), blob(3)], [blob(3), blob(4)])
    assert (artifact_bytes(), total_is_right()) == (40, True)


def test_a_long_claim_goes_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-288: the lock is held for one batch; what was claimed before a refusal stays for its holder to release."""
    monkeypatch.setattr(content, "BATCH", 10)
    limit(totalBytes=250)
    with pytest.raises(ByteLimitExceeded) as caught:
        content.claim("op_a", some(*range(30)))
    assert caught.value.details == {"limit": "totalBytes", "limitBytes": 250}
    assert (len(names("op_a")), artifact_bytes(), total_is_right()) == (20, 200, True)
    assert content.remove_rows(["op_a"]) == 20
    assert artifact_bytes() == 0


def test_a_claim_is_a_transaction_of_its_own() -> None:
    """E-288: it may not hide inside another one, where its lock would be held for as long."""
    with pytest.raises(TransactionOpen):
        transact(lambda tx: content.claim("op_a", some(1)))


def test_the_total_is_read_under_its_lock() -> None:
    """E-214: of claims that fit one by one, no two pass the limit together."""
    limit(totalBytes=1000)
    outcomes = together(12, lambda index: content.claim(f"op_{index:02}", some(index, size=300)))
    refused = [outcome for outcome in outcomes if isinstance(outcome, ByteLimitExceeded)]
    assert (len(refused), outcomes.count(None)) == (9, 3)
    assert (artifact_bytes(), total_is_right()) == (900, True)


def test_a_claim_waits_for_the_holder_of_the_total() -> None:
    """E-214: what another transaction adds while it waits is part of what it reads."""
    limit(totalBytes=1000)
    held, go = Event(), Event()

    def first(tx: Tx) -> None:
        hold_artifact_quota(tx)
        held.set()
        assert go.wait(WAIT)
        content.charge(0, 900)

    def run(index: int) -> None:
        if index == 0:
            transact(first)
        else:
            assert held.wait(WAIT)
            go.set()
            content.claim("op_b", some(1, size=200))

    outcomes = together(2, run)
    assert outcomes[0] is None
    assert isinstance(outcomes[1], ByteLimitExceeded)
    assert (artifact_bytes(), names("op_b")) == (900, [])


def test_claims_of_the_same_blobs_at_once_count_once() -> None:
    """E-129: one row of each blob is counted, whoever came first."""
    outcomes = together(8, lambda index: content.claim(f"op_{index}", some(*range(50))))
    assert outcomes == [None] * 8
    assert (artifact_bytes(), total_is_right(), Content.objects.count()) == (500, True, 400)


def test_a_release_is_a_promise_of_the_commit() -> None:
    """E-288: rows go after it, in batches, and the blobs that nobody names now are noted with the time."""
    content.claim("op_a", some(1, 2))
    content.claim("op_b", some(2))

    def failing(tx: Tx) -> None:
        content.release(tx, ["op_a"])
        raise ValueError

    with pytest.raises(ValueError):
        transact(failing)
    assert not OutboxMessage.objects.exists()
    before = database_now()
    transact(lambda tx: content.release(tx, ["op_a"]))
    row = OutboxMessage.objects.get()
    assert (row.dedupe_key, row.payload) == ("content.remove:op_a", {"key": "op_a", "holders": ["op_a"]})
    assert names("op_a") == [blob(1), blob(2)]
    assert keep_promises() == 1
    assert (names("op_a"), names("op_b"), artifact_bytes(), total_is_right()) == ([], [blob(2)], 10, True)
    (note,) = Unnamed.objects.all()
    assert (note.blob, note.going) == (blob(1), False)
    assert before <= note.since <= database_now()
    assert not OutboxMessage.objects.exists()


def test_the_promises_of_many_holders_lose_none() -> None:
    """E-288: each set of holders has a row of its own."""
    holders = [f"op_{index:04}" for index in range(1500)]
    for holder in holders[::300]:
        content.claim(holder, some(1))
    transact(lambda tx: content.release(tx, holders))
    transact(lambda tx: content.release(tx, holders[:2]))
    assert OutboxMessage.objects.count() == 3
    assert keep_promises() == 3
    assert (Content.objects.count(), artifact_bytes()) == (0, 0)


def test_removal_is_resumed_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-288, pain 8: each batch is one commit; after a kill the total is right and the next run ends the work."""
    monkeypatch.setattr(content, "REMOVE_BATCH", 10)
    content.claim("op_a", some(*range(45)))
    content.claim("op_b", some(*range(0, 45, 3)))
    transact(lambda tx: content.release(tx, ["op_a"]))
    real, left = content._remove, [2]

    def killed(tx: Tx, holders: Any) -> int:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(tx, holders)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "_remove", killed)
        with pytest.raises(KeyboardInterrupt):
            keep_promises()
    assert (len(names("op_a")), total_is_right(), OutboxMessage.objects.count()) == (25, True, 1)
    assert keep_promises() == 1
    assert (names("op_a"), artifact_bytes(), total_is_right()) == ([], 150, True)
    assert keep_promises() == 0


def test_a_holder_that_a_version_names_keeps_its_rows() -> None:
    """E-288: a release that came too late takes nothing from a version."""
    content.claim("op_a", some(1))
    content.claim("op_b", some(1, 2))
    version_of("op_a")
    assert content.remove_rows(["op_a", "op_b"]) == 2
    assert (names("op_a"), artifact_bytes(), total_is_right()) == ([blob(1)], 10, True)
    assert content.remove_rows(["op_a"]) == 0


def test_holders_without_a_version_are_found(clock: Any) -> None:
    """E-288: of one kind, from before a time, however many rows they have."""
    now = database_now()
    old = [ulid("op", now - timedelta(days=2), lambda count, index=index: bytes([index]) * count) for index in range(5)]
    young, upload = ulid("op", now), ulid("av", now - timedelta(days=2))
    for holder in (*old, young, upload):
        content.claim(holder, some(1, 2, 3))
    version_of(old[2])
    found = content.unversioned("op", now - timedelta(days=1))
    assert found == [old[0], old[1], old[3], old[4]]
    assert content.unversioned("op", now - timedelta(days=1), limit=2) == old[:2]
    assert content.unversioned("av", now - timedelta(days=1)) == [upload]
    assert content.unversioned("op", now - timedelta(days=3)) == []


def test_whatever_happens_the_total_is_the_sum_of_the_rows() -> None:
    """E-129, E-288: a thousand random claims and removals, in small batches, from several connections."""

    def run(index: int) -> None:
        pick = random.Random(index)
        for _ in range(60):
            holder = f"op_{pick.randrange(6)}"
            if pick.random() < 0.6:
                content.claim(holder, some(*pick.sample(range(40), pick.randrange(1, 15)), size=7))
            else:
                content.remove_rows([holder, f"op_{pick.randrange(6)}"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "REMOVE_BATCH", 5)
        outcomes = together(4, run)
    assert outcomes == [None] * 4
    assert total_is_right()
    assert not Unnamed.objects.filter(blob__in=Content.objects.values("blob")).exists()
    content.remove_rows([f"op_{index}" for index in range(6)])
    assert (artifact_bytes(), Content.objects.count()) == (0, 0)
