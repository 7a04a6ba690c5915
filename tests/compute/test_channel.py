"""The control plane's end of the Engine channel, against Engines that lie, stall, flood and die."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from environments.compute.channel import EngineChannel, read_file, run_bash
from environments.compute.contract import Answer, Interrupted, NotAccepted
from environments.compute.engine import wire

Script = Callable[[socket.socket], None]
MIB = 1 << 20
ACCEPT = wire.encode(wire.ACCEPTED)
BASH_OUTPUT = {"exitCode": 0, "timedOut": False, "durationMs": 5, "stdoutBytes": 0, "stderrBytes": 0}


def result(output: Any) -> bytes:
    return wire.encode_json(wire.RESULT, {"kind": "completed", "output": output})


@contextmanager
def engine(tmp_path: Path, script: Script) -> Iterator[EngineChannel]:
    """An Engine that reads header and body, then does what ``script`` says, then ends the connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine"))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):
                client, _ = listener.accept()
                with client, suppress(OSError):
                    script(client)

        thread = threading.Thread(target=serve)
        thread.start()
        yield EngineChannel(f"unix:{tmp_path / 'engine'}")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=10)
        assert not thread.is_alive()


def taken(client: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Header and body of a call."""
    frame = wire.read_frame(client)
    assert frame is not None
    return json.loads(frame[1]), b"".join(wire.read_body(client))


def says(*frames: bytes) -> Script:
    def script(client: socket.socket) -> None:
        taken(client)
        for frame in frames:
            client.sendall(frame)

    return script


def call(channel: EngineChannel, op: str = "stat", **options: Any) -> Answer:
    options = {"call_id": "c-1", "epoch": 3, "time_limit_s": 5.0, "args": {}, **options}
    return channel.call(op, options.pop("args"), **options)


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


# ------------------------------------------------------------------------------------------------ answers beyond limits


@pytest.mark.parametrize(
    ("op", "frames"),
    [
        ("stat", [wire.encode(wire.OUT, b"x")]),
        ("stat", [wire.encode(wire.DATA, b"x")]),
        ("bash", [wire.encode(wire.OUT, b"x" * MIB), wire.encode(wire.OUT, b"x")]),
        ("bash", [wire.encode(wire.ERR, b"x" * MIB), wire.encode(wire.ERR, b"x")]),
        ("stat", [ACCEPT]),
        ("stat", [wire.encode(wire.HEADER, b"{}")]),
        ("stat", [b"?\0\0\0\0"]),
        ("stat", [b"R" + (4 * MIB + 1).to_bytes(4, "big")]),
        ("stat", [wire.encode(wire.RESULT, b"{")]),
        ("stat", [wire.encode(wire.RESULT, b"[]")]),
        ("stat", [wire.encode(wire.RESULT, b"[" * 100_000)]),
        ("stat", [wire.encode(wire.RESULT, b"\xff")]),
        ("stat", [wire.encode_json(wire.RESULT, {"kind": "odd"})]),
        ("stat", [wire.encode_json(wire.RESULT, {"kind": "failed", "code": "tool.unknown", "message": "x"})]),
        ("stat", [wire.encode_json(wire.RESULT, {"kind": "failed", "code": "tool.failed", "message": 3})]),
        ("stat", [result({"path": "a"})]),
        ("stat", [result({"path": "a", "type": "door", "size": 1, "mode": "0644", "modifiedAt": "now"})]),
        ("stat", [result({"path": "a", "type": "file", "size": -1, "mode": "0644", "modifiedAt": "now"})]),
        ("stat", [result({"path": "a" * 5000, "type": "file", "size": 1, "mode": "0644", "modifiedAt": "now"})]),
        ("bash", [result({**BASH_OUTPUT, "exitCode": 256})]),
        ("bash", [result({**BASH_OUTPUT, "exitCode": True})]),
        ("bash", [result({**BASH_OUTPUT, "timedOut": 1})]),
        ("bash", [result({**BASH_OUTPUT, "stdoutBytes": 1 << 63})]),
        ("list", [result({"path": "/workspace", "entries": [{}], "truncated": False})]),
        ("list", [result({"path": "/workspace", "entries": [None] * 10_001, "truncated": False})]),
        ("remove", [result({"path": "a", "removed": "3"})]),
    ],
)  # fmt: skip
def test_an_answer_beyond_its_limits_fails_the_call(tmp_path: Path, op: str, frames: list[bytes]) -> None:
    """E-294: an Engine is not trusted: what it sends is checked."""
    with engine(tmp_path, says(ACCEPT, *frames)) as channel:
        answer = call(channel, op)
    assert (answer.kind, answer.code) == ("failed", "tool.failed")


def test_file_bytes_beyond_what_was_asked_are_not_taken(tmp_path: Path) -> None:
    taken_bytes = bytearray()
    with engine(tmp_path, says(ACCEPT, wire.encode(wire.DATA, b"x" * 10), wire.encode(wire.DATA, b"x"))) as channel:
        answer = call(channel, "read", on_data=taken_bytes.extend, most_data=10)
    assert answer.code == "tool.failed"
    assert len(taken_bytes) == 10


def test_an_endless_stream_is_ended_at_its_limit_and_never_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.compute.channel.STREAM_MAX", 5 * MIB)
    ended = threading.Event()

    def script(client: socket.socket) -> None:
        taken(client)
        client.sendall(ACCEPT)
        try:
            while True:
                client.sendall(wire.encode(wire.OUT, b"y" * MIB))
        except OSError:
            ended.set()

    pieces: list[int] = []
    with engine(tmp_path, script) as channel:
        answer = run_bash(channel, "yes", call_id="c", epoch=0, on_stdout=lambda text: pieces.append(len(text)))
        assert ended.wait(5)
    assert answer.code == "tool.failed"
    assert sum(pieces) <= 5 * MIB


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


# ------------------------------------------------------------------------------------------------ tools


def bash_answer(tmp_path: Path, *frames: bytes, **options: Any) -> Answer:
    with engine(tmp_path, says(ACCEPT, *frames)) as channel:
        return run_bash(channel, "x", call_id="c", epoch=0, **options)


def test_text_is_decoded_over_the_borders_of_frames(tmp_path: Path) -> None:
    pieces: list[str] = []
    data = "aé漢😀".encode() + b"\xff" + b"\xe6\xbc"
    frames = [wire.encode(wire.OUT, data[index : index + 1]) for index in range(len(data))]
    answer = bash_answer(tmp_path, *frames, result({**BASH_OUTPUT, "stdoutBytes": len(data)}), on_stdout=pieces.append)
    assert answer.output is not None
    assert answer.output["stdout"] == "".join(pieces) == "aé漢😀\ufffd\ufffd"
    assert answer.output["truncated"] is False


def test_only_the_last_mebibyte_is_kept_and_no_character_is_cut(tmp_path: Path) -> None:
    text = "漢" * 400_000
    frames = list(wire.chunks(wire.OUT, text.encode()))
    answer = bash_answer(
        tmp_path, *frames, result({**BASH_OUTPUT, "stdoutBytes": 1_200_000}), on_stdout=lambda text: None
    )
    assert answer.output is not None
    assert answer.output["truncated"] is True
    assert answer.output["stdout"] == "漢" * (MIB // 3)


def test_what_the_engine_kept_back_counts_as_truncated(tmp_path: Path) -> None:
    answer = bash_answer(tmp_path, wire.encode(wire.ERR, b"end"), result({**BASH_OUTPUT, "stderrBytes": 5_000_000}))
    assert answer.output is not None
    assert (answer.output["stderr"], answer.output["truncated"]) == ("end", True)


@pytest.mark.parametrize(("before", "line"), [(b"", ""), (b"half", "half\n"), (b"full\n", "full\n")])
def test_a_time_out_has_the_last_line(tmp_path: Path, before: bytes, line: str) -> None:
    """E-302: exit code 124 and the line that says after how long."""
    streamed: list[str] = []
    frames = [wire.encode(wire.ERR, before)] if before else []
    output = {**BASH_OUTPUT, "timedOut": True, "exitCode": 9, "stderrBytes": len(before)}
    answer = bash_answer(tmp_path, *frames, result(output), timeout_ms=250, on_stderr=streamed.append)
    assert answer.output is not None
    assert answer.output["stderr"] == "".join(streamed) == f"{line}nylorun: timed out after 250 ms\n"
    assert (answer.output["exitCode"], answer.output["timedOut"]) == (124, True)


def test_a_read_whose_length_is_a_lie_fails(tmp_path: Path) -> None:
    output = {"path": "a", "size": 9, "offset": 0, "length": 4, "mtime": "t", "eof": True}
    with engine(tmp_path, says(ACCEPT, wire.encode(wire.DATA, b"abc"), result(output))) as channel:
        answer = read_file(channel, "a", call_id="c", epoch=0, offset=0, limit=10, time_limit_s=5)
    assert answer.code == "tool.failed"
