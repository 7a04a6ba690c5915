"""Operations run by the worker against a real virtual Engine: failing stores, limits, cancels and takeovers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection

from environments.models import Operation
from environments.services import operations, versions
from manifests.models import ArtifactVersion, Content
from manifests.services import content
from manifests.services.verify import Verification
from manifests.store import override
from nylorun.blobs import MemoryStore, StoreUnavailable, TreeReader, verify
from nylorun.record.models import OutboxMessage
from tests.disks.helpers import asked, operation, row
from tests.support.client import Api
from tests.support.platform import eventually
from workers.steps import operations as step
from workers.steps import sweeps

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/v1/environments/demo"


@pytest.fixture
def demo(served: Api) -> Api:
    """A served virtual Environment that holds a few files."""
    assert served.put(URL, {}).status == 201
    bash(served, "mkdir -p d; for i in $(seq 40); do echo $i > d/$i; done")
    assert served.put(f"{URL}/files/big", bytes(range(256)) * 8192).status == 201
    return served


def bash(api: Api, command: str) -> str:
    answer = api.post(f"{URL}/tools/bash", {"command": command}).json
    assert answer["output"]["exitCode"] == 0, answer
    return str(answer["output"]["stdout"])


def run(operation_id: str) -> Operation:
    """One run of the worker's step, and how it left the Operation."""
    step.run_operation(operation_id)
    return Operation.objects.get(pk=operation_id)


def snapshot(api: Api) -> Operation:
    return run(asked(api, f"{URL}/snapshots").id)


class Failing(MemoryStore):
    """A store that does not answer from its ``healthy``-th call on, until it is ``mended``."""

    def __init__(self, healthy: int) -> None:
        super().__init__()
        self._left, self.mended = healthy, False

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0 and not self.mended:
            raise StoreUnavailable("no space left on device")

    def put(self, key: str, data: bytes) -> None:
        self._count()
        super().put(key, data)

    def has(self, key: str) -> bool:
        self._count()
        return super().has(key)

    def get(self, key: str) -> bytes:
        self._count()
        return super().get(key)


@pytest.mark.parametrize("healthy", range(8))
def test_a_store_that_fails_at_any_step_costs_an_attempt(demo: Api, healthy: int) -> None:
    """E-227, pain 21: nothing half-made is a version; the next attempt goes on, and everything it names is whole."""
    with override(Failing(healthy)) as store:
        assert isinstance(store, Failing)
        failed = snapshot(demo)
        if failed.state == "succeeded":
            assert healthy >= 6, "the store was never asked"
            return
        assert (failed.state, failed.attempt) == ("queued", 1)
        assert not ArtifactVersion.objects.exists()
        assert row().disk_op["operationId"] == failed.id
        store.mended = True
        done = run(failed.id)
        assert (done.state, done.attempt, done.result and done.result["version"]) == ("succeeded", 2, 1)
        assert list(verify(store, ArtifactVersion.objects.get().root)) == []


@pytest.mark.parametrize("healthy", range(4))
def test_a_restore_that_fails_leaves_the_workspace_as_it_was(demo: Api, healthy: int) -> None:
    """E-130, pain 13: the tree comes beside the workspace first."""
    with override(Failing(1000)) as store:
        assert isinstance(store, Failing)
        assert snapshot(demo).state == "succeeded"
        bash(demo, "echo changed > d/1; rm big")
        made = asked(demo, f"{URL}/restore", {"version": 1})
        store._left = healthy
        assert run(made.id).state == "queued"
        store.mended = True
        assert run(made.id).state == "succeeded"
    assert bash(demo, "cat d/1; ls | wc -l").split() == ["1", "2"]


def test_limits_end_a_copy_at_once(demo: Api) -> None:
    """E-129: bytes of a version and of the whole Tenant; what was claimed is given back, the lease is free."""
    assert demo.put("/v1/tenant/sandbox", {"limits": {"diskBytes": "1MiB"}}).status == 200
    failed = snapshot(demo)
    assert (failed.state, failed.http_status, failed.attempt) == ("failed", 413, 1)
    assert failed.error["details"] == {"limit": "versionBytes", "limitBytes": 1 << 20}
    demo.put("/v1/tenant/sandbox", {})
    demo.put("/v1/tenant/artifacts", {"totalBytes": 1 << 20})
    failed = snapshot(demo)
    assert (failed.error["code"], failed.error["details"]["limit"]) == ("limit_exceeded", "totalBytes")
    assert row().disk_op is None
    given_back()
    assert not Content.objects.exists()
    assert demo.get("/v1/tenant/artifacts").json["usedBytes"] == 0
    demo.put("/v1/tenant/artifacts", {})
    assert snapshot(demo).state == "succeeded"


class Waiting(MemoryStore):
    """A store whose first write waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def put(self, key: str, data: bytes) -> None:
        self.asked.set()
        assert self.go.wait(30)
        super().put(key, data)


def in_thread(operation_id: str) -> threading.Thread:
    """The step in a thread of its own, as another worker."""

    def work() -> None:
        try:
            step.run_operation(operation_id)
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_running_copy_is_cancelled_at_its_next_step(demo: Api) -> None:
    """E-226: nothing of it is left but an ended row."""
    with override(Waiting()) as store:
        assert isinstance(store, Waiting)
        made = asked(demo, f"{URL}/snapshots")
        thread = in_thread(made.id)
        assert store.asked.wait(30)
        assert demo.post(f"/v1/operations/{made.id}/cancel", {}).json["state"] == "running"
        eventually(lambda: operations.has_moved(_attempt(made.id)))
        store.go.set()
        thread.join(60)
    made.refresh_from_db()
    assert (made.state, row().disk_op, ArtifactVersion.objects.count()) == ("cancelled", None, 0)


def _attempt(operation_id: str) -> Any:
    return type("Running", (), {"operation_id": operation_id, "attempt": 1})()


def given_back() -> None:
    """Do what the outbox asks for content."""
    for message in OutboxMessage.objects.filter(topic="content.remove"):
        sweeps.remove_content(message.payload["key"])


@pytest.mark.parametrize("path", ["snapshots", "fork"])
def test_what_a_copy_claims_while_its_environment_goes_is_given_back(
    demo: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """E-275, E-129: by the delete what is claimed by then, by the worker that finds its fence gone what came after."""
    demo.put("/v1/environment-manifests/box", {"kind": "virtual"})
    asked_once, go, real = threading.Event(), threading.Event(), content.claim

    def late(holder: str, blobs: Sequence[tuple[str, int]]) -> None:
        real(holder, blobs[:1])
        asked_once.set()
        assert go.wait(30)
        real(holder, blobs)

    monkeypatch.setattr(content, "claim", late)
    made = asked(demo, f"{URL}/{path}", {"id": "demo-2", "manifest": "box"} if path == "fork" else {})
    thread = in_thread(made.id)
    assert asked_once.wait(30)
    assert demo.delete(f"{URL}?force=true").json["deleted"] is True
    given_back()
    assert not Content.objects.exists()
    go.set()
    thread.join(60)
    assert Content.objects.filter(holder=made.id).exists()
    given_back()
    assert not Content.objects.exists()
    assert demo.get("/v1/tenant/artifacts").json["usedBytes"] == 0


def test_a_waiting_copy_that_its_environment_takes_along_gives_back(demo: Api) -> None:
    """E-129: no worker runs it, so the delete itself says what is to go."""
    with override(Failing(3)):
        failed = snapshot(demo)
    assert (failed.state, Content.objects.filter(holder=failed.id).exists()) == ("queued", True)
    assert demo.delete(f"{URL}?force=true").json["deleted"] is True
    given_back()
    assert not Content.objects.exists()


def test_a_late_worker_leaves_what_the_next_attempt_needs(demo: Api, clock: Any) -> None:
    """E-283: an Operation that goes on, or has made its version, keeps its content."""
    made = asked(demo, f"{URL}/snapshots")
    with override(Waiting()) as slow:
        assert isinstance(slow, Waiting)
        thread = in_thread(made.id)
        assert slow.asked.wait(30)
        clock.advance(minutes=3)
        assert operations.begin(made.id) is not None
        slow.go.set()
        thread.join(60)
    assert not OutboxMessage.objects.filter(topic="content.remove").exists()
    assert Content.objects.filter(holder=made.id).exists()
    clock.advance(minutes=3)
    assert run(made.id).state == "succeeded"
    assert versions.release_late(made.id) is False


def test_a_worker_paused_past_its_lease_writes_nothing(demo: Api, clock: Any) -> None:
    """E-283, pain 18: the other one's version stands; the late one's last commit is refused."""
    with override(Waiting()) as slow:
        assert isinstance(slow, Waiting)
        made = asked(demo, f"{URL}/snapshots")
        thread = in_thread(made.id)
        assert slow.asked.wait(30)
        clock.advance(minutes=3)
        with override(MemoryStore()) as store:
            done = run(made.id)
            assert (done.state, done.attempt) == ("succeeded", 2)
            assert TreeReader(store, ArtifactVersion.objects.get().root).files == done.result["fileCount"]
        slow.go.set()
        thread.join(60)
    made.refresh_from_db()
    assert (made.state, made.attempt, ArtifactVersion.objects.count()) == ("succeeded", 2, 1)


def test_a_damaged_previous_version_is_no_obstacle(demo: Api, store: MemoryStore) -> None:
    """Pain 13: the next snapshot reads everything again and stores what was damaged."""
    assert snapshot(demo).state == "succeeded"
    root = ArtifactVersion.objects.get().root
    for blob in [one.key for one in store.list()]:
        if blob != root:
            store.delete(blob)
    bash(demo, "echo more > more")
    done = snapshot(demo)
    assert (done.state, done.result and done.result["version"]) == ("succeeded", 2)
    for version in ArtifactVersion.objects.all():
        if version.number == 2:
            assert list(verify(store, version.root)) == []


def test_a_fork_runs_from_request_to_filled_disk(demo: Api) -> None:
    """E-230: one Operation, then the new disk's seed, byte for byte."""
    demo.put("/v1/environment-manifests/box", {"kind": "virtual"})
    body = {"id": "demo-2", "manifest": "box"}
    assert run(asked(demo, f"{URL}/fork", body).id).state == "succeeded"
    assert run(operation("seed", "demo-2").id).state == "succeeded"
    answer = demo.post("/v1/environments/demo-2/tools/bash", {"command": "cat d/7; wc -c < big"}).json
    assert answer["output"]["stdout"].split() == ["7", str(256 * 8192)]


@pytest.mark.parametrize("found_by", ["verify", "restore"])
def test_a_damaged_version_is_stored_anew_by_the_next_copy_of_its_disk(
    demo: Api, store: MemoryStore, found_by: str
) -> None:
    """Pain 13: what was found damaged is whole again after a snapshot, with the same number and hash."""
    assert snapshot(demo).state == "succeeded"
    before = ArtifactVersion.objects.get()
    big = TreeReader(store, before.root).find(b"big")
    assert big is not None
    blob = big.refs[0].blob
    stored = store.get(blob)
    store.put(blob, stored[:-1] + bytes([stored[-1] ^ 1]))
    assert snapshot(demo).result["created"] is False, "nobody knows of the damage yet"
    if found_by == "verify":
        assert len(list(Verification(store))) == 1
    else:
        restored = run(asked(demo, f"{URL}/restore", {"version": 1}).id)
        assert restored.error["code"] == "disk_copy_failed"
    assert ArtifactVersion.objects.get().damaged
    done = snapshot(demo)
    assert (done.state, done.result["version"], done.result["created"]) == ("succeeded", 1, False)
    given_back()
    after = ArtifactVersion.objects.get()
    assert (after.damaged, after.sha256, after.file_count) == (False, before.sha256, before.file_count)
    assert list(Verification(store)) == []
    assert run(asked(demo, f"{URL}/restore", {"version": 1}).id).state == "succeeded"
