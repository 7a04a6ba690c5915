"""The contract of a Driver, held by the local one: what calls change, what they leave alone, and what survives what."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from environments.compute.contract import NoAnswer, SandboxStatus
from environments.compute.local import host, image
from environments.compute.local.driver import LocalDriver
from environments.compute.local.errors import NameTaken
from environments.compute.local.places import hold
from environments.compute.local.processes import is_alive, start_time
from tests.compute.local.helpers import (
    INSTALLATION,
    NAME,
    Client,
    ControlPlane,
    eventually,
    joined,
    our_groups,
    our_processes,
    own_pods,
    pod_note,
    ready,
    spec,
)

NOTHING = SandboxStatus(name=NAME, exists=False, volume="missing")


def nothing_is_left(uid: str) -> bool:
    return not our_processes(uid) and not our_groups()


def pids(root: Path) -> dict[str, int]:
    """The host's pids of a pod's three processes."""
    note = pod_note(root)
    engine, supervisor = note["engine"]["pid"], note["supervisor"]["pid"]
    (bwrap,) = set(our_processes(note["podUid"])) - {engine, supervisor}
    return {"supervisor": supervisor, "bwrap": bwrap, "engine": engine}


def test_readiness_says_that_pods_can_be_made(driver: LocalDriver) -> None:
    """E-117: a Driver says whether it can make pods."""
    assert driver.readiness().ready, driver.readiness().reason


def test_an_unknown_name_is_gone(driver: LocalDriver) -> None:
    assert driver.status(NAME) == NOTHING
    assert driver.status(NAME).gone
    driver.delete(NAME)
    assert driver.list().objects == {}


def test_apply_makes_a_pod_that_joins(driver: LocalDriver, plane: ControlPlane, tmp_path: Path) -> None:
    """E-255: the local Driver makes object, volume and pod, and the pod joins as what `status` reports."""
    driver.apply(spec(plane.url))
    pod = joined(driver, plane)
    status = driver.status(NAME)
    assert (status.exists, status.mode, status.uid, status.op_id) == (True, "Running", "uid-1", f"{NAME}.r1")
    assert (status.pod_phase, status.volume, status.suspended, status.reason) == ("Running", "present", False, None)
    (join,) = plane.joins()
    assert join == {
        "environmentId": "demo", "podUid": status.pod_uid, "joinToken": "join-token", "volumeId": status.volume_id,
        "address": status.address,
    }  # fmt: skip
    assert pod.sh("hostname") == NAME
    assert oct((tmp_path / "pods" / NAME / "run" / "join").stat().st_mode & 0o777) == "0o440"


def test_applying_one_op_id_twice_changes_nothing(driver: LocalDriver, plane: ControlPlane) -> None:
    """E-104: the same op id leaves pod and object alone."""
    driver.apply(spec(plane.url))
    before = ready(driver)
    driver.apply(spec(plane.url, join_token=None))
    assert driver.status(NAME) == before


def test_a_stale_apply_changes_nothing(driver: LocalDriver, plane: ControlPlane) -> None:
    """E-104: a lower rev than the object's is no going back, whatever its mode."""
    driver.apply(spec(plane.url, rev=5))
    before = ready(driver)
    driver.apply(spec(plane.url, rev=4, mode="Suspended"))
    driver.apply(spec(plane.url, rev=3, join_token="old"))
    assert driver.status(NAME) == before


def test_a_higher_rev_is_a_new_pod_on_the_same_volume(driver: LocalDriver, plane: ControlPlane) -> None:
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo kept > file")
    first = driver.status(NAME)
    driver.apply(spec(plane.url, rev=2, join_token=None))
    assert joined(driver, plane).sh("cat file") == "kept"
    second = driver.status(NAME)
    assert second.op_id == f"{NAME}.r2"
    assert second.volume_id == first.volume_id
    assert second.pod_uid != first.pod_uid
    assert our_processes(first.pod_uid or "") == []


def test_suspend_ends_the_pod_and_keeps_the_volume(driver: LocalDriver, plane: ControlPlane) -> None:
    """Pain 1: what was written before the suspend is there after the wake; nothing of the pod stays."""
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo late > file; sleep 999 >/dev/null 2>&1 &")
    before = driver.status(NAME)
    driver.apply(spec(plane.url, rev=2, mode="Suspended"))
    status = eventually(lambda: (status := driver.status(NAME)).suspended and status)
    assert (status.ready, status.pod_uid, status.address, status.volume) == (False, None, None, "present")
    assert nothing_is_left(before.pod_uid or "")
    driver.apply(spec(plane.url, rev=3, join_token=None))
    assert joined(driver, plane).sh("cat file") == "late"
    assert driver.status(NAME).volume_id == before.volume_id


@pytest.mark.parametrize(("trap", "written"), [("trap 'echo bye > said; exit' TERM", "bye"), ("trap '' TERM", "")])
def test_suspend_asks_first_and_kills_after_the_grace(
    driver: LocalDriver, plane: ControlPlane, trap: str, written: str
) -> None:
    """Lifecycle 13.2: TERM, and KILL after the grace."""
    driver.apply(spec(plane.url))
    pod = joined(driver, plane)
    with pod.open(
        "bash", {"command": f"{trap}; echo up; while :; do sleep 0.05; done", "timeoutMs": 60_000, "stream": True}
    ):
        eventually(lambda: "sleep 0.05" in pod.bash("ps -eo args").text)
        driver.apply(spec(plane.url, rev=2, mode="Suspended", grace_seconds=0.5))
        eventually(lambda: driver.status(NAME).suspended)
    driver.apply(spec(plane.url, rev=3, join_token=None))
    assert joined(driver, plane).bash("cat said").text.strip() == written


def test_delete_leaves_nothing(driver: LocalDriver, plane: ControlPlane, tmp_path: Path) -> None:
    """E-112: after a delete neither object, pod nor volume is there; deleting again succeeds."""
    driver.apply(spec(plane.url))
    uid = ready(driver).pod_uid or ""
    driver.delete(NAME)
    assert driver.status(NAME).gone
    assert nothing_is_left(uid)
    driver.delete(NAME)
    assert [path.name for path in (tmp_path / "pods").iterdir() if not path.name.startswith(".")] == []
    assert list((tmp_path / "pods" / ".trash").iterdir()) == []


@pytest.mark.parametrize("as_folder", [True, False])
def test_delete_removes_a_hostile_tree_and_follows_no_link(
    driver: LocalDriver, plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_folder: bool
) -> None:
    """Pain 29: links, closed folders and depth neither stop a delete nor lead it outside."""
    if as_folder:
        monkeypatch.setattr(image, "why_not", lambda root: "not here")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    driver.apply(spec(plane.url))
    joined(driver, plane).sh(
        f"ln -s {outside} out; ln -s {outside}/precious f; mkdir -p closed/in; chmod 0 closed/in closed;"
        'python3 -c \'import os\nfor _ in range(1500): os.mkdir("d" * 100); os.chdir("d" * 100)\''
    )
    driver.delete(NAME)
    assert driver.status(NAME).gone
    assert (outside / "precious").read_text() == "x"
    assert list((tmp_path / "pods" / ".trash").iterdir()) == []


def test_delete_can_keep_the_volume(driver: LocalDriver, plane: ControlPlane) -> None:
    """E-108: a lost Environment's object goes and its volume stays."""
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo kept > file")
    before = driver.status(NAME)
    driver.delete(NAME, keep_volume=True)
    after = driver.status(NAME)
    assert (after.exists, after.pod_uid, after.volume, after.volume_id) == (False, None, "present", before.volume_id)
    assert not after.gone
    listing = driver.list()
    assert (list(listing.objects), list(listing.volumes)) == ([], [NAME])
    driver.apply(spec(plane.url, rev=2))
    assert joined(driver, plane).sh("cat file") == "kept"


def test_a_lost_volume_is_seen(driver: LocalDriver, plane: ControlPlane, tmp_path: Path) -> None:
    """E-108: a volume that was taken away is missing; one made in its place has another id."""
    driver.apply(spec(plane.url))
    before = ready(driver)
    (tmp_path / "pods" / NAME / "volume").rename(tmp_path / "taken")
    assert driver.status(NAME).volume == "missing"
    driver.apply(spec(plane.url, rev=2))
    assert ready(driver).volume_id not in (None, before.volume_id)


@pytest.mark.parametrize("victim", ["supervisor", "bwrap", "engine"])
def test_a_killed_pod_is_seen_and_started_again_by_the_same_op(
    driver: LocalDriver, plane: ControlPlane, tmp_path: Path, victim: str
) -> None:
    """Pain 31: SIGKILL of any of its processes is a pod that is gone, and `apply` of the same op id starts another."""
    driver.apply(spec(plane.url))
    joined(driver, plane).sh("echo kept > file")
    before = driver.status(NAME)
    os.kill(pids(tmp_path / "pods")[victim], signal.SIGKILL)
    status = eventually(lambda: (status := driver.status(NAME)).pod_uid is None and status)
    assert (status.ready, status.volume, status.reason, bool(status.message)) == (False, "present", "crash", True)
    driver.apply(spec(plane.url, join_token=None))
    assert joined(driver, plane).sh("cat file") == "kept"
    assert driver.status(NAME).pod_uid != before.pod_uid
    assert our_processes(before.pod_uid or "") == []
    assert len(our_groups()) == len(pod_note(tmp_path / "pods")["groups"])


def test_a_pod_that_ends_by_itself_leaves_nothing(driver: LocalDriver, plane: ControlPlane, tmp_path: Path) -> None:
    driver.apply(spec(plane.url))
    uid = ready(driver).pod_uid or ""
    os.kill(pids(tmp_path / "pods")["engine"], signal.SIGKILL)
    eventually(lambda: nothing_is_left(uid))


def test_a_pid_that_was_given_to_somebody_else_is_not_taken_for_the_pod(
    driver: LocalDriver, plane: ControlPlane, tmp_path: Path
) -> None:
    """Lifecycle 13.2: a pod is found by pid and start time, never by pid alone; a foreign process is not killed."""
    driver.apply(spec(plane.url))
    ready(driver)
    root = tmp_path / "pods"
    note = pod_note(root)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        note["engine"]["pid"] = note["supervisor"]["pid"] = stranger.pid
        (root / NAME / "pod.json").write_text(json.dumps(note))
        assert driver.status(NAME).pod_uid is None
        driver.apply(spec(plane.url, rev=2))
        assert ready(driver).pod_uid != note["podUid"]
        assert our_processes(note["podUid"]) == []
        assert stranger.poll() is None
        stranger.kill()


def test_two_concurrent_applies_make_one_pod(driver: LocalDriver, plane: ControlPlane) -> None:
    """Pain 20: however many workers apply at once, there is one supervisor, one Engine, one join."""
    other = LocalDriver(driver._root, INSTALLATION)
    driver.readiness()
    barrier = threading.Barrier(4)

    def apply(chosen: LocalDriver) -> None:
        barrier.wait(10)
        chosen.apply(spec(plane.url))

    threads = [threading.Thread(target=apply, args=(chosen,)) for chosen in (driver, other, driver, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    joined(driver, plane)
    assert len(our_processes()) == 3
    assert len(plane.joins()) == 1


def test_a_pod_survives_the_process_that_applied_it(driver: LocalDriver, plane: ControlPlane) -> None:
    """E-255: a worker's death, SIGKILL included, ends no pod; any other process finds it again."""
    code = (
        "import os, pathlib, signal, sys\n"
        "from environments.compute.local.driver import LocalDriver\n"
        "from tests.compute.local.helpers import INSTALLATION, spec\n"
        "LocalDriver(pathlib.Path(sys.argv[1]), INSTALLATION).apply(spec(sys.argv[2], name=sys.argv[3]))\n"
        "os.killpg(0, signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(driver._root), plane.url, NAME]
    result = subprocess.run(command, cwd=host.CODE_ROOT, start_new_session=True, timeout=30)
    assert result.returncode == -signal.SIGKILL
    assert joined(driver, plane).sh("echo there") == "there"
    before = driver.status(NAME)
    driver.apply(spec(plane.url))
    assert driver.status(NAME) == before


def test_an_object_of_another_installation_is_left_alone(
    driver: LocalDriver, plane: ControlPlane, tmp_path: Path
) -> None:
    """Pain 32: foreign objects are seen, named as such, and neither changed nor deleted nor listed."""
    stranger = LocalDriver(tmp_path / "pods", "another-installation")
    with own_pods(stranger, NAME):
        stranger.apply(spec(plane.url, uid="uid-9", installation="another-installation"))
        before = ready(stranger)
        with pytest.raises(NameTaken):
            driver.apply(spec(plane.url, rev=9, mode="Suspended"))
        with pytest.raises(NameTaken):
            driver.delete(NAME)
        status = driver.status(NAME)
        assert (status.uid, status.reason, status.pod_uid) == ("uid-9", "name_taken", before.pod_uid)
        assert driver.list().objects == {}
        assert driver.list().volumes == {}
        assert stranger.status(NAME) == before


def test_an_object_of_another_uid_is_not_changed(driver: LocalDriver, plane: ControlPlane) -> None:
    """Lifecycle 5.1 step 7: it is seen by its uid, refused to an apply, and may be deleted."""
    driver.apply(spec(plane.url, uid="uid-old"))
    before = ready(driver)
    with pytest.raises(NameTaken):
        driver.apply(spec(plane.url, rev=7, uid="uid-new"))
    assert driver.status(NAME) == before
    driver.delete(NAME, keep_volume=True)
    assert driver.status(NAME).uid == "uid-old"
    with pytest.raises(NameTaken):
        driver.apply(spec(plane.url, rev=7, uid="uid-new"))


def test_list_names_objects_and_volumes_with_their_ages(driver: LocalDriver, plane: ControlPlane) -> None:
    driver.apply(spec(plane.url))
    listing = driver.list()
    assert list(listing.objects) == list(listing.volumes) == [NAME]
    assert 0 <= listing.objects[NAME] < 30
    assert 0 <= listing.volumes[NAME] < 30


def test_a_name_that_is_being_changed_gives_no_answer(
    driver: LocalDriver, plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.compute.local.places.LOCK_SECONDS", 0.05)
    with hold(tmp_path / "pods", NAME), pytest.raises(NoAnswer):
        driver.apply(spec(plane.url))
    assert driver.status(NAME) == NOTHING


def test_a_data_folder_with_a_long_path_gets_a_short_socket(tmp_path: Path, plane: ControlPlane) -> None:
    """An address has at most 107 bytes; the folder may lie deeper."""
    root = tmp_path / ("long" * 30) / "pods"
    driver = LocalDriver(root, INSTALLATION)
    with own_pods(driver, NAME):
        driver.apply(spec(plane.url))
        address = ready(driver).address or ""
        assert len(address) <= len("unix:") + 107
        assert Client(address).call("ping", {}).output["engine"] == "pod"
        folder = Path(address.removeprefix("unix:")).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []
    folder.rmdir()


def test_the_starter_inherits_nothing_and_waits_for_nobody(driver: LocalDriver, plane: ControlPlane) -> None:
    """A supervisor holds no pipe of its starter, and has none of its variables."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    os.environ["NYLORUN_TEST_CANARY"] = "canary"
    try:
        driver.apply(spec(plane.url))
        os.close(write)
        assert os.read(read, 1) == b""
        for pid in our_processes():
            assert b"canary" not in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        os.close(read)
        del os.environ["NYLORUN_TEST_CANARY"]


def test_start_time_tells_processes_apart() -> None:
    own = start_time(os.getpid())
    assert is_alive(os.getpid(), own)
    assert not is_alive(os.getpid(), (own or 0) + 1)
    child = os.fork()
    if child == 0:
        os._exit(0)
    eventually(lambda: start_time(child) is None)  # a zombie counts as gone
    os.waitpid(child, 0)
    assert start_time(child) is None


def test_an_object_without_its_join_token_is_none(driver: LocalDriver, plane: ControlPlane) -> None:
    """E-109: one that was made half-way, or lost its token, is made again with a new one on the same volume."""
    driver.apply(spec(plane.url))
    joined(driver, plane).bash("echo kept > kept.txt")
    volume = driver.status(NAME).volume_id
    driver.apply(spec(plane.url, rev=2, mode="Suspended"))
    shutil.rmtree(driver._root / NAME / "run")
    seen = driver.status(NAME)
    assert (seen.exists, seen.volume, seen.volume_id) == (False, "present", volume)
    driver.apply(spec(plane.url, rev=3))
    assert joined(driver, plane).bash("cat kept.txt").out == b"kept\n"


def test_a_damaged_volume_is_there_is_nobodys_and_goes_with_a_delete(driver: LocalDriver, plane: ControlPlane) -> None:
    """E-279, E-281, pain 34: without its id it is another volume; without its owner nobody adopts what it holds."""
    driver.apply(spec(plane.url))
    joined(driver, plane).bash("echo SECRET > keep")
    driver.apply(spec(plane.url, rev=2, mode="Suspended"))
    (driver._root / NAME / "volume" / "id").unlink()
    seen = driver.status(NAME)
    assert (seen.volume, seen.volume_id, seen.gone) == ("present", None, False)
    driver.delete(NAME, keep_volume=True)
    (driver._root / NAME / "volume" / "owner.json").unlink()
    left = driver.status(NAME)
    assert (left.exists, left.gone, left.uid) == (False, False, "unknown")
    driver.delete(NAME)
    assert driver.status(NAME).gone


def test_a_suspend_that_died_after_the_object_was_written_is_done_by_the_next(
    driver: LocalDriver, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-104, pain 2: the same op id applied again ends the pod that is left."""
    driver.apply(spec(plane.url))
    joined(driver, plane)

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(driver, "_follow", killed)
    with pytest.raises(Killed):
        driver.apply(spec(plane.url, rev=2, mode="Suspended"))
    left = driver.status(NAME)
    assert (left.op_id, left.mode, left.pod_uid is not None) == (f"{NAME}.r2", "Suspended", True)
    monkeypatch.undo()
    driver.apply(spec(plane.url, rev=2, mode="Suspended", join_token=None))
    eventually(lambda: driver.status(NAME).suspended)
