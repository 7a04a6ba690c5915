"""Joining and renewing: asked again when refused or unanswered, told to the Engine, never taken into the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.compute.local import joining
from environments.compute.local.driver import LocalDriver
from tests.compute.local.helpers import (
    INSTALLATION,
    NAME,
    Client,
    ControlPlane,
    eventually,
    joined,
    own_pods,
    ready,
    spec,
)


def test_a_refused_join_is_asked_again_until_it_is_answered(driver: LocalDriver, plane: ControlPlane) -> None:
    """E-110: 401, 409 and 503 are asked again, and until then the Engine runs nothing."""
    plane.script = [401, 503, 409]
    driver.apply(spec(plane.url))
    pod = joined(driver, plane)
    assert len(plane.joins()) == 4
    assert pod.sh("echo joined") == "joined"


def test_before_the_join_no_tool_runs(driver: LocalDriver, plane: ControlPlane) -> None:
    plane.token = "another"
    driver.apply(spec(plane.url))
    ready(driver)
    eventually(lambda: len(plane.joins()) >= 3)
    pod = Client(driver.status(NAME).address or "", epoch=1)
    reply = pod.call("write", {"path": "early"}, b"x")
    assert reply.refusal is not None
    assert reply.refusal["reason"] == "epoch"
    plane.token = "join-token"
    assert joined(driver, plane).call("stat", {"path": "early"}).code == "tool.not_found"


def test_a_control_plane_that_is_down_is_asked_until_it_is_up(driver: LocalDriver) -> None:
    first = ControlPlane()
    port = first.server.server_port
    first.close()
    driver.apply(spec(f"http://127.0.0.1:{port}"))
    ready(driver)
    second = ControlPlane()
    try:
        driver.apply(spec(second.url, rev=2))
        joined(driver, second)
    finally:
        second.close()


def test_renewals_bear_the_last_host_token(tmp_path: Path, plane: ControlPlane) -> None:
    """Lifecycle 7.3: renewed at an interval, with the token of the last answer."""
    driver = LocalDriver(tmp_path / "pods", INSTALLATION, renew_seconds=0.05)
    with own_pods(driver, NAME):
        driver.apply(spec(plane.url))
        joined(driver, plane)
        eventually(lambda: len(plane.renewals()) >= 3)
    assert plane.renewals()[:3] == ["Bearer host-1-1", "Bearer host-1-2", "Bearer host-1-3"]
    assert len(plane.joins()) == 1


def test_a_refused_renewal_is_followed_by_a_join_whose_epoch_the_engine_takes(
    tmp_path: Path, plane: ControlPlane
) -> None:
    driver = LocalDriver(tmp_path / "pods", INSTALLATION, renew_seconds=0.05)
    with own_pods(driver, NAME):
        driver.apply(spec(plane.url))
        joined(driver, plane)
        plane.script = [401]
        eventually(lambda: plane.epoch == 2)
        assert joined(driver, plane).epoch == 2
        assert joined(driver, plane).sh("echo second") == "second"
    assert len({body["podUid"] for body in plane.joins()}) == 1


def test_a_pod_outlives_a_control_plane_that_is_away(tmp_path: Path, plane: ControlPlane) -> None:
    """E-255: while nothing answers, a joined pod stays, and renews once something does."""
    driver = LocalDriver(tmp_path / "pods", INSTALLATION, renew_seconds=0.05)
    with own_pods(driver, NAME):
        driver.apply(spec(plane.url))
        pod = joined(driver, plane)
        before = driver.status(NAME)
        plane.script = [503] * 3
        asked = len(plane.requests)
        eventually(lambda: len(plane.requests) >= asked + 5)
        assert driver.status(NAME) == before
        assert pod.sh("echo same epoch") == "same epoch"
    assert len(plane.joins()) == 1


class Stopwatch:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr("environments.compute.local.joining.time.monotonic", watch.monotonic)
    monkeypatch.setattr(joining, "_pause", watch.pause)
    return watch


def conversation(url: str, told: list[int]) -> joining.Joining:
    return joining.Joining(url, {"environmentId": "demo"}, lambda: "join-token", told.append)


def test_refusals_end_the_pod_after_the_start_deadline(plane: ControlPlane, watch: Stopwatch) -> None:
    """Lifecycle 7.1: asked every 2 s for START_DEADLINE, then it ends."""
    plane.token = "another"
    told: list[int] = []
    assert "refused" in conversation(plane.url, told).run(300)
    assert watch.now == pytest.approx(300, abs=3)
    assert len(plane.joins()) == pytest.approx(150, abs=8)
    assert told == []


def test_a_pod_that_nobody_ever_answered_ends_too(watch: Stopwatch) -> None:
    nobody = ControlPlane()
    nobody.close()
    conversation(nobody.url, []).run(300)
    assert watch.now == pytest.approx(300, abs=3)


def test_silence_after_a_join_is_no_refusal(plane: ControlPlane, watch: Stopwatch) -> None:
    """An hour without answers to a pod that must join again changes nothing; the next answer does."""
    told: list[int] = []
    plane.script = [200, 401, *[503] * 1800, 200, 401]
    original, refused_for_good = plane.answer, []

    def answer(path: str, body: dict[str, object], authorization: str | None) -> tuple[int, dict[str, object]]:
        if not plane.script:
            refused_for_good.append(path)
            plane.token = "another"
        return original(path, body, authorization)

    plane.answer = answer  # type: ignore[method-assign]
    conversation(plane.url, told).run(10)
    assert told == [1, 2]
    assert watch.now > 3600
    assert refused_for_good


@pytest.mark.parametrize(
    ("authority", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("host", ("host", 80)),
        ("[::1]", ("::1", 80)),
        ("[::1]:81", ("::1", 81)),
    ],
)
def test_the_address_of_a_url(authority: str, address: tuple[str, int]) -> None:
    assert joining._address(authority) == address


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_no_http_answer_is_none(answer: bytes) -> None:
    with pytest.raises(ValueError):
        joining._parse(answer)
