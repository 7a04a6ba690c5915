"""The Engine channel: frames over a Unix stream socket, one connection per call.

A frame is one type byte, four bytes of big-endian length, and at most 1 MiB of payload (``R``: 4 MiB). The client
sends ``H`` (header), ``D`` (body) until ``Z`` (end of body), and later perhaps ``K`` (kill). The Engine answers ``A``
(accepted) or ``N`` (refused, nothing has run), then ``O``, ``E``, ``D`` (standard output, standard error, file bytes)
and exactly one ``R`` (result), after which it closes.

A reader may rely on:
  * ``read_frame`` never reads past its frame, so ``Decoder`` can take over at any frame's end;
  * ``read_frame`` answers ``None`` only for an end between two frames; an end inside one is :class:`ProtocolError`;
  * a header that passed ``parse_header`` has every member, of the right type; ``op`` and ``call`` are not empty.

Standard library only: this file also runs inside sandboxes.
"""

from __future__ import annotations

from _socket import SO_SNDBUF, SOL_SOCKET

from environments.compute.engine import jsonc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, Protocol

    class Stream(Protocol):
        """The part of a blocking socket that frames need."""

        def recv(self, size: int, /) -> bytes: ...
        def sendall(self, data: bytes | memoryview, /) -> None: ...

    class Options(Protocol):
        """The part of a socket that its buffers need."""

        def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


VERSION = 1
MAX_PAYLOAD = 1 << 20
MAX_RESULT = 4 << 20  # ``R`` alone: a listing of ten thousand entries is one result
CHUNK = 256 * 1024
AHEAD = 2 << 20  # what the kernel may hold of a disk copy, so that its two ends work side by side
COPIED = 4096  # a larger payload is sent by itself, not copied behind its head first
HEAD = 5

HEADER, DATA, END, KILL = b"H", b"D", b"Z", b"K"
ACCEPTED, REFUSED, OUT, ERR, RESULT = b"A", b"N", b"O", b"E", b"R"
FROM_CLIENT = frozenset((HEADER, DATA, END, KILL))
FROM_ENGINE = frozenset((ACCEPTED, REFUSED, OUT, ERR, DATA, RESULT))
KNOWN = FROM_CLIENT | FROM_ENGINE


class ProtocolError(Exception):
    """The other side does not speak this protocol, or stopped in the middle of a frame: close the connection."""


class Refused(Exception):
    """A call that may not run, or did not: ``reason`` is the word sent in ``N``; nothing has run."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class ToolError(Exception):
    """A tool that ran and failed: ``code`` is one of the ``tool.*`` words, ``message`` one sentence for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Cancelled(Exception):
    """The client sent ``K``, or another connection ended the call by its id."""


class ClientGone(Exception):
    """The connection ended before the call did."""


class Header:
    """The first frame of a call. ``workspace``, ``limits`` and ``egress`` are for the virtual Engine alone."""

    __slots__ = ("args", "call", "egress", "epoch", "limits", "op", "workspace")

    def __init__(
        self,
        op: str,
        call: str,
        epoch: int | None,
        args: dict[str, Any],
        workspace: str | None,
        limits: dict[str, Any],
        egress: dict[str, Any],
    ) -> None:
        self.op = op
        self.call = call
        self.epoch = epoch
        self.args = args
        self.workspace = workspace
        self.limits = limits
        self.egress = egress


def parse_header(payload: bytes) -> Header:
    """Check a header frame's payload; raises :class:`Refused` with reason ``bad_request``."""
    try:
        raw = jsonc.loads(payload)
    except ValueError:
        raise Refused("bad_request", "The header is not JSON.") from None
    if not isinstance(raw, dict) or raw.get("v") != VERSION:
        raise Refused("bad_request", f"The header is not of version {VERSION}.")
    epoch = raw.get("epoch")
    if epoch is not None and (isinstance(epoch, bool) or not isinstance(epoch, int)):
        raise Refused("bad_request", "epoch is not a whole number.")
    return Header(
        op=_text(raw, "op"),
        call=_text(raw, "call"),
        epoch=epoch,
        args=_mapping(raw, "args"),
        workspace=_text(raw, "workspace") if raw.get("workspace") is not None else None,
        limits=_mapping(raw, "limits"),
        egress=_mapping(raw, "egress"),
    )


def encode_header(
    op: str,
    args: Mapping[str, Any],
    *,
    call: str,
    epoch: int | None,
    workspace: str | None,
    limits: Mapping[str, int] | None,
    egress: Mapping[str, str] | None = None,
) -> bytes:
    """A header frame; ``workspace``, and with it ``limits`` and ``egress``, are for the virtual Engine alone."""
    header: dict[str, Any] = {"v": VERSION, "op": op, "call": call, "epoch": epoch, "args": dict(args)}
    if workspace is not None:
        header.update(workspace=workspace, limits=dict(limits or {}))
        if egress:
            header["egress"] = dict(egress)
    return encode_json(HEADER, header)


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise Refused("bad_request", f"{name} is not a text of 1 to 256 characters.")
    return value


def _mapping(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused("bad_request", f"{name} is not an object.")
    return value


def head(kind: bytes, length: int) -> bytes:
    """What stands before a payload of ``length`` bytes; one over the limit is a mistake of the caller."""
    if length > _most(kind):
        raise ValueError("a frame carries at most 1 MiB, a result 4 MiB")
    return kind + length.to_bytes(4, "big")


def encode(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return head(kind, len(payload)) + payload


def encode_json(kind: bytes, value: Any) -> bytes:
    """One frame whose payload is ``value`` as JSON."""
    return encode(kind, jsonc.dumps(value).encode("ascii"))


def chunks(kind: bytes, data: bytes) -> Iterator[bytes]:
    """``data`` as frames of at most 256 KiB; no frame for no data."""
    for start in range(0, len(data), CHUNK):
        yield encode(kind, data[start : start + CHUNK])


def write_frame(sock: Stream, kind: bytes, payload: bytes | memoryview = b"") -> None:
    """Send one frame; blocks, and raises ``OSError`` when the other side is gone."""
    if isinstance(payload, bytes) and len(payload) <= COPIED:
        sock.sendall(encode(kind, payload))
    else:
        sock.sendall(head(kind, len(payload)))
        sock.sendall(payload)


def send_ahead(sock: Options) -> None:
    """Let a sender be up to ``AHEAD`` bytes further than its receiver, as far as this host allows."""
    sock.setsockopt(SOL_SOCKET, SO_SNDBUF, AHEAD)


def write_json(sock: Stream, kind: bytes, value: Any) -> None:
    """Send one frame whose payload is ``value`` as JSON."""
    sock.sendall(encode_json(kind, value))


def read_frame(sock: Stream) -> tuple[bytes, bytes] | None:
    """Wait for one frame: ``(type, payload)``, or ``None`` when the other side ended between two frames."""
    start = read_head(sock)
    if start is None:
        return None
    kind, length = start
    payload = _exactly(sock, length, may_end=False) if length else b""
    return kind, payload or b""


def read_head(sock: Stream) -> tuple[bytes, int] | None:
    """Wait for a frame's head: ``(type, length)``, or ``None`` when the other side ended between two frames."""
    start = _exactly(sock, HEAD, may_end=True)
    return None if start is None else check_head(start)


def check_head(start: bytes) -> tuple[bytes, int]:
    """Type and length in the five bytes of a head."""
    kind, length = bytes(start[:1]), int.from_bytes(start[1:HEAD], "big")
    if kind not in KNOWN:
        raise ProtocolError("unknown frame type")
    if length > _most(kind):
        raise ProtocolError("frame over its limit")
    return kind, length


def _most(kind: bytes) -> int:
    return MAX_RESULT if kind == RESULT else MAX_PAYLOAD


def _exactly(sock: Stream, size: int, *, may_end: bool) -> bytes | None:
    parts: list[bytes] = []
    missing = size
    while missing:
        part = sock.recv(min(missing, CHUNK))
        if not part:
            if may_end and missing == size:
                return None
            raise ProtocolError("the connection ended inside a frame")
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Decoder:
    """Frames out of bytes that arrive in pieces, for loops that must not block."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def inside_frame(self) -> bool:
        """Whether bytes of an unfinished frame are waiting."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Take ``data`` and give the frames it completes, in order."""
        self._buffer += data
        frames: list[tuple[bytes, bytes]] = []
        start = 0
        while len(self._buffer) - start >= HEAD:
            kind, length = check_head(bytes(self._buffer[start : start + HEAD]))
            end = start + HEAD + length
            if len(self._buffer) < end:
                break
            frames.append((kind, bytes(self._buffer[start + HEAD : end])))
            start = end
        del self._buffer[:start]
        return frames


def read_body(sock: Stream) -> Iterator[bytes]:
    """The body bytes up to ``Z`` as they come, in pieces of at most ``CHUNK`` that need not be whole frames.

    Raises :class:`Cancelled` at ``K`` and :class:`ClientGone` when the client left.
    """
    while True:
        start = read_head(sock)
        if start is None:
            raise ClientGone
        kind, length = start
        if kind == END:
            return
        if kind == KILL:
            raise Cancelled
        if kind != DATA:
            raise ProtocolError("expected body bytes")
        while length:
            piece = sock.recv(min(length, CHUNK))
            if not piece:
                raise ProtocolError("the connection ended inside a frame")
            length -= len(piece)
            yield piece


def completed(output: Mapping[str, Any]) -> dict[str, Any]:
    """The ``R`` value of a call that ended well."""
    return {"kind": "completed", "output": dict(output)}


def failed(code: str, message: str) -> dict[str, Any]:
    """The ``R`` value of a call whose tool failed."""
    return {"kind": "failed", "code": code, "message": message}
