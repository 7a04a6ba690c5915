"""Kept disks as rows see them: a version's twin has its key after the commit, and a volume made from it is not filled
again.
"""

from __future__ import annotations

from typing import Any

import pytest

from environments.compute.contract import NoAnswer
from environments.compute.fake import FakeDriver, FakeKeeps
from environments.compute.local.kept import NAME
from environments.models import Operation
from environments.services import operations
from environments.services.versions import Copied
from environments.tools import disk
from environments.tools.twin import Twin
from manifests.models import ArtifactVersion
from nylorun.tenant.store import installation_id
from tests.disks.helpers import asked, operation, row, tree
from tests.disks.test_fills import POD, run_pod
from tests.support.client import Api
from workers.steps import operations as step
from workers.steps import pods as reconciling
from workers.steps import sweeps

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/v1/environments/demo"


class Disk:
    """What stands in for the copying itself: the tree that is read, and the trees that were written."""

    def __init__(self) -> None:
        self.holds = "one"
        self.written: list[str] = []
        self.steady = True

    def copy_out(self, target: Any, *, twin: Twin, **_: Any) -> Copied:
        twin.take()
        if not self.steady:
            twin.drop()
        return tree(self.holds)

    def copy_in(self, target: Any, *, root: str, **_: Any) -> None:
        self.written.append(root)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Disk:
    stand_in = Disk()
    monkeypatch.setattr(disk, "copy_out", stand_in.copy_out)
    monkeypatch.setattr(disk, "copy_in", stand_in.copy_in)
    return stand_in


@pytest.fixture(autouse=True)
def _own_installation() -> None:
    installation_id.cache_clear()


@pytest.fixture
def keeps(pods: FakeDriver) -> FakeKeeps:
    pods.keeps = FakeKeeps()
    return pods.keeps


@pytest.fixture
def demo(keeps: FakeKeeps, pods: FakeDriver, copied: Disk) -> Api:
    """A running pod ``demo``."""
    api = Api.for_application("app-1")
    assert api.put(URL, POD).status == 201
    run_pod(api, pods)
    return api


def snapshot(api: Api) -> Operation:
    made = asked(api, f"{URL}/snapshots")
    step.run_operation(made.id)
    made.refresh_from_db()
    return made


def restored(api: Api, pods: FakeDriver) -> Operation:
    """A restore of version 1 whose new pod has joined; the Operation has not run."""
    made = asked(api, f"{URL}/restore", {"version": 1})
    for _ in range(3):
        reconciling.reconcile_pod("demo")
    run_pod(api, pods)
    return made


def test_a_version_has_its_twin_after_its_commit(
    demo: Api, keeps: FakeKeeps, copied: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is the Operation that made it, which no other version ever has; until then there is a draft only."""
    seen: list[tuple[int, set[str], set[str]]] = []
    real = step._settle

    def looking(attempt: operations.Attempt, twin: Twin) -> None:
        seen.append((ArtifactVersion.objects.count(), set(keeps.drafts), set(keeps.keys)))
        real(attempt, twin)

    monkeypatch.setattr(step, "_settle", looking)
    made = snapshot(demo)
    assert made.state == "succeeded"
    assert seen == [(1, {f"{made.id}.1"}, set())]
    assert (keeps.keys, keeps.drafts) == ({made.id}, set())
    assert all(NAME.fullmatch(name) for name in (made.id, f"{made.id}.1"))


def test_an_unchanged_version_keeps_its_earlier_twin(demo: Api, keeps: FakeKeeps) -> None:
    first, again = snapshot(demo), snapshot(demo)
    assert (again.http_status, keeps.keys, keeps.drafts) == (200, {first.id}, set())


@pytest.mark.parametrize("how", ["fence", "hold", "error"])
def test_a_copy_that_did_not_count_leaves_no_twin(
    demo: Api, keeps: FakeKeeps, copied: Disk, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """An attempt that was overtaken must not give its later state to the version that its successor made."""
    if how == "fence":
        monkeypatch.setattr(operations, "is_ours", lambda *_: False)
    elif how == "hold":
        copied.steady = False
    else:
        monkeypatch.setattr(step.snapshots, "finish", lambda *_: (_ for _ in ()).throw(NoAnswer("away")))
    snapshot(demo)
    assert (keeps.keys, keeps.drafts) == (set(), set())


def test_a_new_volume_made_from_the_twin_is_not_filled_again(
    demo: Api, keeps: FakeKeeps, copied: Disk, pods: FakeDriver
) -> None:
    """The rest of the Operation is as ever: it begins after the join, and its last commit clears the seed."""
    key = snapshot(demo).id
    made = restored(demo, pods)
    assert pods.machines[str(row().k8s_name)].spec.seed == key
    assert row().disk_seed is not None
    step.run_operation(made.id)
    made.refresh_from_db()
    assert (made.state, made.data["copied"], copied.written) == ("succeeded", "reflink", [])
    assert row().disk_seed is None
    pods.kill_pod(str(row().k8s_name))
    reconciling.reconcile_pod("demo")
    assert pods.machines[str(row().k8s_name)].spec.seed is None


@pytest.mark.parametrize("how", ["dropped", "portable"])
def test_any_other_new_volume_is_filled_from_the_archive(
    demo: Api, keeps: FakeKeeps, copied: Disk, pods: FakeDriver, how: str
) -> None:
    snapshot(demo)
    if how == "dropped":
        keeps.drop(set(keeps.keys))
    else:
        pods.keeps = None
    made = restored(demo, pods)
    step.run_operation(made.id)
    made.refresh_from_db()
    assert (made.state, "copied" in made.data) == ("succeeded", False)
    assert copied.written == [ArtifactVersion.objects.get().root]


@pytest.mark.parametrize("filled", [True, False])
def test_a_driver_that_does_not_say_is_asked_again(
    demo: Api, keeps: FakeKeeps, copied: Disk, pods: FakeDriver, filled: bool
) -> None:
    """In doubt nothing is written: a filled volume that one attempt began to overwrite would pass as whole later."""
    snapshot(demo)
    if not filled:
        keeps.drop(set(keeps.keys))
    made = restored(demo, pods)
    pods.silent = True
    step.run_operation(made.id)
    made.refresh_from_db()
    assert (made.state, copied.written) == ("queued", [])
    pods.silent = False
    step.run_operation(made.id)
    made.refresh_from_db()
    assert (made.state, len(copied.written)) == ("succeeded", 0 if filled else 1)


def test_a_fork_makes_and_uses_a_twin(demo: Api, keeps: FakeKeeps, copied: Disk, pods: FakeDriver) -> None:
    demo.put("/v1/environment-manifests/box", POD)
    made = asked(demo, f"{URL}/fork", {"id": "copy", "manifest": "box", "disk": "latest"})
    step.run_operation(made.id)
    assert (keeps.keys, keeps.drafts) == ({made.id}, set())
    reconciling.reconcile_pod("copy")
    assert pods.machines[str(row("copy").k8s_name)].spec.seed == made.id
    assert operation("seed", "copy").state == "queued"


def test_the_sweep_drops_twins_whose_version_is_gone(demo: Api, keeps: FakeKeeps, copied: Disk) -> None:
    first = snapshot(demo)
    copied.holds = "two"
    second = snapshot(demo)
    assert keeps.keys == {first.id, second.id}
    sweeps.kept_disks()
    assert keeps.keys == {first.id, second.id}
    assert demo.delete(f"{URL}/snapshots/1").json["deleted"]
    sweeps.kept_disks()
    assert keeps.keys == {second.id}
