"""The control plane's end of the Engine channel: when a call has run, may have run, and how it is ended."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.compute.channel import EngineChannel
from environments.compute.contract import Answer, Interrupted, NotAccepted
from environments.compute.engine import wire
from tests.compute.support import ACCEPT, BASH_OUTPUT, MIB, call, engine, result, says, taken


def test_a_call_is_one_header_one_body_one_result(tmp_path: Path) -> None:
    seen: list[Any] = []

    def script(client: socket.socket) -> None:
        seen.append(taken(client))
        client.sendall(ACCEPT + result({"path": "a", "size": 3, "sha256": "sha256:x", "created": True, "more": 1}))

    with engine(tmp_path, script) as channel:
        answer = call(
            channel, "write", args={"path": "a"}, body=iter([b"ab", b"", b"c"]), workspace="w", limits={"diskBytes": 1}
        )
    assert answer == Answer("completed", output={"path": "a", "size": 3, "sha256": "sha256:x", "created": True})
    header = {
        "v": 1,
        "op": "write",
        "call": "c-1",
        "epoch": 3,
        "args": {"path": "a"},
        "workspace": "w",
        "limits": {"diskBytes": 1},
    }
    assert seen == [(header, b"abc")]


def test_a_tool_that_failed_says_so(tmp_path: Path) -> None:
    failure = wire.encode_json(wire.RESULT, wire.failed("tool.not_found", "gone" * 5000))
    with engine(tmp_path, says(ACCEPT, failure)) as channel:
        answer = call(channel)
    assert (answer.kind, answer.code) == ("failed", "tool.not_found")
    assert answer.message is not None
    assert len(answer.message) == 2000


# ------------------------------------------------------------------------------------------------ nothing has run


@pytest.mark.parametrize("address", ["unix:/nowhere/engine", "127.0.0.1:1", "nonsense", "unix:", "host:port"])
def test_no_connection_is_not_accepted(address: str) -> None:
    with pytest.raises(NotAccepted):
        call(EngineChannel(address, connect_timeout=1))


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (wire.encode_json(wire.REFUSED, {"reason": "epoch", "message": "another"}),),
        (wire.encode(wire.REFUSED, b"not json"),),
        (result({}),),
        (wire.encode(wire.OUT, b"early"), ACCEPT),
        (b"X\0\0\0\0",),
        (b"A\0\0",),
        (b"A" + (2 << 20).to_bytes(4, "big"),),
    ],
)
def test_what_ends_before_a_is_not_accepted(tmp_path: Path, frames: tuple[bytes, ...]) -> None:
    with engine(tmp_path, says(*frames)) as channel, pytest.raises(NotAccepted):
        call(channel)


def test_an_engine_that_dies_before_reading_has_run_nothing(tmp_path: Path) -> None:
    with engine(tmp_path, lambda client: None) as channel, pytest.raises(NotAccepted):
        call(channel, "write", body=iter([b"x" * MIB] * 20))


def test_an_engine_that_never_accepts_has_run_nothing_and_cannot_begin_later(tmp_path: Path) -> None:
    late: list[str] = []

    def script(client: socket.socket) -> None:
        taken(client)
        while client.recv(1):
            pass
        try:
            client.sendall(ACCEPT)
        except OSError as error:
            late.append(type(error).__name__)

    with engine(tmp_path, script) as channel, pytest.raises(NotAccepted):
        call(channel, time_limit_s=0.2)
    assert late == ["BrokenPipeError"]


# --------------------------------------------------------------------------------------------- something may have run


@pytest.mark.parametrize(
    "rest", [b"", wire.encode(wire.OUT, b"x"), result(BASH_OUTPUT)[:-1], b"R\0", b"R\0\0\xff\xff{"]
)
def test_what_ends_between_a_and_the_result_is_interrupted(tmp_path: Path, rest: bytes) -> None:
    """E-196: a cut at any byte is never taken for a success."""
    with engine(tmp_path, says(ACCEPT + rest)) as channel, pytest.raises(Interrupted):
        call(channel, "bash")


def test_a_stream_cut_at_every_byte_is_never_a_success(tmp_path: Path) -> None:
    whole = ACCEPT + wire.encode(wire.OUT, b"out") + result(BASH_OUTPUT)
    for cut in range(len(whole)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        with engine(folder, says(whole[:cut])) as channel, pytest.raises((NotAccepted, Interrupted)) as caught:
            call(channel, "bash")
        assert caught.type is (NotAccepted if cut < len(ACCEPT) else Interrupted)
    (tmp_path / "whole").mkdir()
    with engine(tmp_path / "whole", says(whole)) as channel:
        assert call(channel, "bash").kind == "completed"


def test_a_silent_engine_is_given_up_at_the_time_limit(tmp_path: Path) -> None:
    def script(client: socket.socket) -> None:
        taken(client)
        client.sendall(ACCEPT)
        assert client.recv(1) == b""

    started = time.monotonic()
    with engine(tmp_path, script) as channel, pytest.raises(Interrupted):
        call(channel, time_limit_s=0.3)
    assert time.monotonic() - started < 2


def test_an_engine_that_dribbles_does_not_outlive_the_time_limit(tmp_path: Path) -> None:
    stop = threading.Event()

    def script(client: socket.socket) -> None:
        taken(client)
        client.sendall(ACCEPT)
        while not stop.wait(0.02):
            client.sendall(wire.encode(wire.OUT, b"."))

    with engine(tmp_path, script) as channel:
        with pytest.raises(Interrupted):
            call(channel, "bash", args={"stream": True}, time_limit_s=0.4)
        stop.set()


# ------------------------------------------------------------------------------------------------ ending a call


def test_cancel_sends_k_and_takes_the_engines_answer(tmp_path: Path) -> None:
    cancel = threading.Event()
    seen: list[Any] = []

    def script(client: socket.socket) -> None:
        taken(client)
        client.sendall(ACCEPT)
        cancel.set()
        seen.append(wire.read_frame(client))
        client.sendall(wire.encode_json(wire.RESULT, wire.failed("tool.cancelled", "stopped")))

    with engine(tmp_path, script) as channel:
        assert call(channel, cancel=cancel).code == "tool.cancelled"
    assert seen == [(wire.KILL, b"")]


def test_cancel_does_not_wait_for_an_engine_that_will_not_hear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.compute.channel.CANCEL_SECONDS", 0.2)
    cancel = threading.Event()

    def script(client: socket.socket) -> None:
        taken(client)
        client.sendall(ACCEPT)
        cancel.set()
        while client.recv(64):
            pass

    with engine(tmp_path, script) as channel:
        assert call(channel, cancel=cancel, time_limit_s=60).code == "tool.cancelled"


@pytest.mark.parametrize("error", [ZeroDivisionError(), ConnectionResetError(), TimeoutError(), ValueError()])
def test_what_a_sink_raises_ends_the_call_and_its_connection(tmp_path: Path, error: Exception) -> None:
    gone = threading.Event()

    def script(client: socket.socket) -> None:
        taken(client)
        client.sendall(ACCEPT + wire.encode(wire.OUT, b"x"))
        if client.recv(1) == b"":
            gone.set()

    def broken(_: bytes) -> None:
        raise error

    with engine(tmp_path, script) as channel:
        with pytest.raises(type(error)):
            call(channel, "bash", on_stdout=broken)
        assert gone.wait(5)


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), ValueError()])
def test_what_a_body_raises_ends_the_call_and_its_connection(tmp_path: Path, error: Exception) -> None:
    ends: list[Any] = []

    def script(client: socket.socket) -> None:
        wire.read_frame(client)
        ends.append(wire.read_frame(client))
        ends.append(wire.read_frame(client))

    def broken() -> Iterator[bytes]:
        yield b"x"
        raise error

    with engine(tmp_path, script) as channel, pytest.raises(type(error)):
        call(channel, "write", body=broken())
    assert ends == [(wire.DATA, b"x"), None]


def test_an_early_answer_to_a_long_body_is_heard(tmp_path: Path) -> None:
    def script(client: socket.socket) -> None:
        wire.read_frame(client)
        client.sendall(ACCEPT + wire.encode_json(wire.RESULT, wire.failed("tool.no_space", "full")))

    with engine(tmp_path, script) as channel:
        assert call(channel, "write", body=iter([b"x" * MIB] * 50)).code == "tool.no_space"
