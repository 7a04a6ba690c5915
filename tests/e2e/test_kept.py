"""Forks and restores without a copy, with the real processes on a data folder that clones files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nylorun.cli.client import environment_path
from tests.compute.local.cow import cow_folder
from tests.e2e.test_disks import AWKWARD, SUM, ask, python
from tests.support.platform import Platform, eventually, platform

pytestmark = pytest.mark.live

POD = {"kind": "pod", "storage": "12GiB", "resources": {"cpus": 1, "memory": "512MiB"}}


@pytest.fixture(scope="module")
def live() -> Iterator[Platform]:
    """A platform whose data folder is on XFS."""
    with (
        tempfile.TemporaryDirectory(prefix="nylorun-cow-") as folder,
        cow_folder("xfs", Path(folder), 32 << 30) as at,
        platform("--driver", "local", within=at) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def source(live: Platform) -> str:
    """A pod with an awkward tree in version 1, which is kept; the sum of its tree."""
    live.client.expect(201, "PUT", "/v1/environment-manifests/disk-box", POD)
    live.client.expect(201, "PUT", environment_path("source"), {"manifest": "disk-box"})
    python(live, "source", AWKWARD)
    snapshot(live, "source", 201)
    return python(live, "source", SUM)


def snapshot(live: Platform, id: str, status: int) -> Any:
    answered, body = ask(live, environment_path(id, "/snapshots"))
    assert answered == status, body
    return body


def kept(live: Platform) -> list[str]:
    return sorted(path.name for path in (live.folder / "pods" / ".kept").iterdir())


def filled(live: Platform, id: str) -> Any:
    """The key from which the volume of this pod was made."""
    return json.loads((live.pod(id) / "volume" / "owner.json").read_text()).get("filled")


def sha(live: Platform, id: str) -> str:
    return str(live.client.expect(200, "GET", environment_path(id, "/snapshots"))["versions"][0]["sha256"])


def test_a_fork_is_byte_for_byte_what_the_archive_holds(live: Platform, source: str) -> None:
    """E-277: names, modes, times, links, holes, attributes and depth; a copy of the fork is the same content."""
    assert live.client.expect(200, "GET", "/readyz")["checks"]["copies"] == "reflink"
    assert len(kept(live)) == 1
    body = {"id": "twin", "manifest": "disk-box", "disk": 1}
    assert ask(live, environment_path("source", "/fork"), body)[0] == 201
    assert python(live, "twin", SUM) == source
    assert kept(live) == [f"{filled(live, 'twin')}.img"]
    snapshot(live, "twin", 201)
    assert sha(live, "twin") == sha(live, "source")


def test_a_restore_starts_from_the_kept_disk_and_is_unchanged(live: Platform, source: str) -> None:
    """The next snapshot finds the version itself again; a version that is unchanged keeps its earlier image."""
    live.bash("source", "rm -rf many d; echo other > large")
    before = kept(live)
    status, restored = ask(live, environment_path("source", "/restore"), {"version": 1})
    assert status == 200, restored
    assert python(live, "source", SUM) == source
    assert f"{filled(live, 'source')}.img" in before
    assert snapshot(live, "source", 200)["version"] == 1
    assert kept(live) == before


def test_without_its_kept_disk_a_fork_copies_from_the_archive(live: Platform, source: str) -> None:
    for path in (live.folder / "pods" / ".kept").iterdir():
        path.unlink()
    body = {"id": "plain", "manifest": "disk-box", "disk": 1}
    assert ask(live, environment_path("source", "/fork"), body)[0] == 201
    assert python(live, "plain", SUM) == source
    assert filled(live, "plain") is None


def test_what_is_kept_of_a_version_goes_with_it(live: Platform, source: str) -> None:
    live.client.expect(201, "PUT", environment_path("brief"), {"manifest": "disk-box"})
    live.bash("brief", "echo brief > file")
    before = set(kept(live))
    snapshot(live, "brief", 201)
    assert len(set(kept(live)) - before) == 1
    live.client.expect(200, "DELETE", environment_path("brief", "/snapshots/1"))
    eventually(lambda: set(kept(live)) <= before)
