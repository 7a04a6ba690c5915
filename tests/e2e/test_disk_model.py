"""Long random alternations of edits, suspends, wakes, snapshots and restores: the disk is always what a model says."""

from __future__ import annotations

import hashlib
import itertools
import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nylorun.cli.client import environment_path
from tests.e2e.test_disks import ask
from tests.support.platform import Platform, eventually, platform

pytestmark = pytest.mark.live

POD = {"kind": "pod", "resources": {"cpus": 1, "memory": "256MiB"}}
NAMES = st.sampled_from(["a", "b", "dir/a", "dir/deeper/b", "dir2/c", "with space", "ünïcode"])
EDITS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.integers(0, 3000), st.sampled_from("xyz")),
    st.tuples(st.just("append"), NAMES, st.integers(1, 300_000), st.sampled_from("pq")),
    st.tuples(st.just("remove"), NAMES),
)
ACTIONS = st.one_of(
    EDITS,
    EDITS,
    st.just(("stop",)),
    st.just(("snapshot",)),
    st.just(("snapshot",)),
    st.tuples(st.just("restore"), st.integers(0, 5)),
)
numbers = itertools.count()


@pytest.fixture(scope="module")
def live() -> Iterator[Platform]:
    """One platform for all alternations."""
    with platform("--driver", "local") as running:
        yield running


class Model:
    """What the disk holds, and what each version held."""

    def __init__(self, live: Platform, id: str, kind: str) -> None:
        self.live, self.id, self.kind = live, id, kind
        self.files: dict[str, bytes] = {}
        self.versions: dict[int, dict[str, bytes]] = {}

    def write(self, name: str, size: int, letter: str) -> None:
        self.files[name] = letter.encode() * size
        self._put(name)

    def append(self, name: str, size: int, letter: str) -> None:
        self.files[name] = self.files.get(name, b"") + letter.encode() * size
        self._put(name)

    def _put(self, name: str) -> None:
        path = environment_path(self.id, f"/files/{quote(name)}")
        answer = self.live.client.call("PUT", path, raw=self.files[name])
        assert answer.status in (200, 201), answer

    def remove(self, name: str) -> None:
        self.files.pop(name, None)
        self.live.bash(self.id, f"rm -f {shlex.quote(name)}")

    def stop(self) -> None:
        if self.kind == "pod":
            self.live.client.expect(200, "POST", environment_path(self.id, "/stop"), {})
            eventually(lambda: self.live.view(self.id)["pod"]["observed"] == "suspended")

    def snapshot(self) -> None:
        status, made = ask(self.live, environment_path(self.id, "/snapshots"))
        assert status in (200, 201), made
        before = self.versions.get(made["version"])
        assert made["created"] == (before is None)
        self.versions[made["version"]] = dict(self.files)

    def restore(self, chosen: int) -> None:
        if not self.versions:
            return
        number = sorted(self.versions)[chosen % len(self.versions)]
        eventually(lambda: ask(self.live, environment_path(self.id, "/restore"), {"version": number})[0] == 200)
        self.files = dict(self.versions[number])

    def check(self) -> None:
        """Every file and nothing else, byte for byte."""
        printed = self.live.bash(self.id, 'find . -type f | sort | while IFS= read -r f; do sha256sum "$f"; done')
        found = {line[66:].removeprefix("./"): line[:64] for line in printed.splitlines()}
        assert found == {name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()}


@pytest.mark.parametrize("kind", ["pod", "virtual"])
def test_random_alternations_end_in_what_the_model_says(live: Platform, kind: str) -> None:
    """E-124, E-130, E-277, pain 13: whatever the order, every hash is right."""

    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(ACTIONS, min_size=6, max_size=14))
    def alternate(actions: list[tuple[Any, ...]]) -> None:
        id = f"model-{kind}-{next(numbers)}"
        live.client.expect(201, "PUT", environment_path(id), POD if kind == "pod" else {"kind": kind})
        model = Model(live, id, kind)
        for name, *arguments in actions:
            getattr(model, name)(*arguments)
            if name in ("restore", "stop"):
                model.check()
        model.check()
        live.client.expect(200, "DELETE", environment_path(id, "?force=true"))

    alternate()
