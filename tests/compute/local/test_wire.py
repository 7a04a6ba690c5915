"""Frames, headers and the small JSON of the Engine channel, from well formed to hostile."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from environments.compute.engine import jsonc, wire

values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
    max_leaves=20,
)


@given(values)
def test_json_is_what_the_standard_module_reads_and_writes(value: Any) -> None:
    assert json.loads(jsonc.dumps(value)) == value
    assert jsonc.loads(json.dumps(value)) == value
    assert jsonc.loads(jsonc.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", "{} {}", "NaN", "-Infinity", "[" * 100_000, b"\xff", '{"a":', "[1,]", '"\\x"', "'a'", "\ufeff1"],
)
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        jsonc.loads(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x", object()])
def test_what_json_has_no_word_for_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        jsonc.dumps(value)


@given(
    some.lists(some.tuples(some.sampled_from(sorted(wire.KNOWN)), some.binary(max_size=300)), max_size=8), some.data()
)
def test_frames_survive_any_cutting(frames: list[tuple[bytes, bytes]], data: some.DataObject) -> None:
    packed = b"".join(wire.encode(*frame) for frame in frames)
    decoder, got = wire.Decoder(), []
    while packed:
        size = data.draw(some.integers(1, len(packed)))
        got += decoder.feed(packed[:size])
        packed = packed[size:]
    assert got == frames
    assert not decoder.inside_frame


def test_read_frame_reads_one_frame_and_no_more() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(wire.encode(wire.OUT, b"one") + b"rest")
        assert wire.read_frame(ours) == (wire.OUT, b"one")
        assert ours.recv(10) == b"rest"
        theirs.close()
        assert wire.read_frame(ours) is None


@pytest.mark.parametrize("sent", [b"O\0\0", b"O\0\0\0\x05ab", b"O\0\x10\0\x01", b"?\0\0\0\0"])
def test_a_broken_frame_is_a_protocol_error(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(wire.ProtocolError):
            wire.read_frame(ours)


def test_a_frame_has_a_limit() -> None:
    assert len(wire.encode(wire.DATA, b"x" * wire.MAX_PAYLOAD)) == wire.MAX_PAYLOAD + wire.HEAD
    with pytest.raises(ValueError):
        wire.encode(wire.DATA, b"x" * (wire.MAX_PAYLOAD + 1))
    assert b"".join(frame[wire.HEAD :] for frame in wire.chunks(wire.OUT, b"y" * 600_000)) == b"y" * 600_000


GOOD = {"v": 1, "op": "ping", "call": "c", "epoch": 3, "args": {"a": 1}}


def test_a_header_is_read() -> None:
    header = wire.parse_header(json.dumps(GOOD).encode())
    assert (header.op, header.call, header.epoch, header.args, header.workspace, header.limits) == (
        "ping", "c", 3, {"a": 1}, None, {},
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2}, {"op": ""}, {"op": 1}, {"op": None}, {"call": "x" * 300}, {"epoch": "3"}, {"epoch": True},
        {"args": []}, {"workspace": 7}, {"limits": "x"},
    ],
)  # fmt: skip
def test_a_wrong_header_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(wire.Refused) as caught:
        wire.parse_header(json.dumps({**GOOD, **change}).encode())
    assert caught.value.reason == "bad_request"


@pytest.mark.parametrize("payload", [b"", b"[]", b"\xff", b"{"])
def test_a_header_that_is_no_object_is_refused(payload: bytes) -> None:
    with pytest.raises(wire.Refused):
        wire.parse_header(payload)
