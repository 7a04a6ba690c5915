"""The control plane's end of the Engine channel: answers of Engines that lie or flood, and the output made of them."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from environments.compute.channel import read_file, run_bash
from environments.compute.contract import Answer
from environments.compute.engine import wire
from tests.compute.support import ACCEPT, BASH_OUTPUT, MIB, call, engine, result, says, taken


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
