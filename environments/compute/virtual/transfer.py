"""One HTTP request through the way out, and its redirects, for ``curl`` and ``wget``.

A reader may rely on:
  * plain HTTP goes to the gate in absolute form, HTTPS through a tunnel with TLS that is verified here;
  * every failure is :class:`Failure` with curl's exit code; bodies pass through in pieces of ``PIECE``;
  * ``Authorization`` and ``Cookie`` of the caller go to no other origin than the first;
  * nothing waits beyond the deadline, where there is one.
Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import io
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected

from environments.compute.virtual.outside import Outside, Unreachable
from environments.compute.virtual.urls import Url, joined

PIECE = 64 * 1024
HEAD_MAX = 64 * 1024
REDIRECTS = frozenset((301, 302, 303, 307, 308))
UNRESOLVED, REFUSED, PARTIAL, TIMED_OUT, TLS_FAILED = 6, 7, 18, 28, 35
TOO_MANY_REDIRECTS, EMPTY, BROKEN, UNVERIFIED = 47, 52, 56, 60
_PRIVATE = frozenset(("authorization", "cookie"))


class Failure(Exception):
    """What went wrong: ``code`` is curl's exit code, ``message`` one line for people."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. ``headers`` are complete but for ``Host``; ``forced``: the method was chosen by the caller."""

    method: str
    url: Url
    headers: tuple[tuple[str, str], ...]
    body: bytes | None = None
    forced: bool = False


@dataclass(slots=True)
class Got:
    """An answer whose body has not been read."""

    ask: Ask
    response: HTTPResponse
    redirects: int = 0
    said: list[str] = field(default_factory=list)
    """Every head so far, for those who want to see them."""

    @property
    def status(self) -> int:
        return self.response.status

    def body(self) -> Iterator[bytes]:
        """The body in pieces; raises ``Failure`` when it is cut off."""
        with failures():
            while piece := self.response.read(PIECE):
                yield piece
            if self.response.length:
                raise Failure(PARTIAL, "the transfer was cut off before its end")


class Transfer:
    """The requests of one command, over one way out."""

    def __init__(self, outside: Outside, *, until: float | None, note: Callable[[str], None]) -> None:
        self._outside = outside
        self._until = until
        self._note = note

    def follow(self, ask: Ask, redirects: int) -> Got:
        """The answer, after at most so many redirects (0: none is followed); raises ``Failure``."""
        said: list[str] = []
        number = 0
        while True:
            got = self.request(ask)
            said.append(_head_of(got.response))
            target = got.response.headers.get("Location")
            if not redirects or got.status not in REDIRECTS or target is None:
                return replace(got, redirects=number, said=said)
            self.done(got)
            if number == redirects:
                raise Failure(TOO_MANY_REDIRECTS, f"Maximum ({redirects}) redirects followed")
            number += 1
            ask = _redirected(ask, got.status, target)

    def request(self, ask: Ask) -> Got:
        """Send one request and read the head of its answer; raises ``Failure``."""
        with failures():
            raw = self._connect(ask)
            _timed(raw, self._until)
            with suppress(ConnectionError):  # a server that takes no more may have answered all the same
                raw.sendall(_request(ask) + (ask.body or b""))
            self._note(f"> {ask.method} {ask.url.target} HTTP/1.1")
            response = HTTPResponse(_Wire(raw, self._until), method=ask.method)  # type: ignore[arg-type]  # what it uses
            response.begin()
        return Got(ask, response)

    def done(self, got: Got) -> None:
        """Close the connection of an answer."""
        got.response.close()
        self._outside.release()

    def _connect(self, ask: Ask) -> socket.socket:
        try:
            raw = self._outside.connect()
        except Unreachable as error:
            raise Failure(REFUSED, f"Failed to connect to {ask.url.host}: {error}") from error
        if ask.url.scheme == "http":
            return raw
        self._note(f"* CONNECT {ask.url.authority}")
        _tunnel(raw, ask.url, self._until)
        _timed(raw, self._until)
        secured = self._outside.secure(raw, ask.url.host)
        self._note(f"* {secured.version()} with {ask.url.host}, verified")
        return secured


class _Wire:
    """As much of a socket as a response reads from, with a deadline for all of it."""

    def __init__(self, raw: socket.socket, until: float | None) -> None:
        self._reader: io.BufferedIOBase = io.BufferedReader(_Timed(raw, until), PIECE)

    def makefile(self, *_: object) -> io.BufferedIOBase:
        return self._reader


class _Timed(io.RawIOBase):
    def __init__(self, raw: socket.socket, until: float | None) -> None:
        self._raw = raw
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what a BufferedReader passes
        _timed(self._raw, self._until)
        return self._raw.recv_into(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class failures:
    """A block whose mishaps become ``Failure``."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (OSError, HTTPException)):
            raise _failure(error) from error


def _failure(error: OSError | HTTPException) -> Failure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure(UNVERIFIED, f"SSL certificate problem: {error.verify_message}")
    if isinstance(error, TimeoutError):
        return Failure(TIMED_OUT, "Operation timed out")
    if isinstance(error, ssl.SSLError):
        return Failure(TLS_FAILED, f"TLS connect error: {error.reason or 'the connection was closed'}")
    if isinstance(error, RemoteDisconnected):
        return Failure(EMPTY, "Empty reply from server")
    if isinstance(error, IncompleteRead):
        return Failure(PARTIAL, "the transfer was cut off before its end")
    if isinstance(error, HTTPException):
        return Failure(BROKEN, "the answer is no sound HTTP")
    return Failure(BROKEN, "Recv failure: the connection was closed")


def _timed(raw: socket.socket, until: float | None) -> None:
    if until is None:
        return
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    raw.settimeout(left)


def _tunnel(raw: socket.socket, url: Url, until: float | None) -> None:
    """Have the gate connect; raises ``Failure`` with what it says when it does not."""
    _timed(raw, until)
    raw.sendall(f"CONNECT {url.authority} HTTP/1.1\r\nHost: {url.authority}\r\n\r\n".encode("ascii"))
    head = b""
    while (end := head.find(b"\r\n\r\n")) < 0:
        _timed(raw, until)
        piece = raw.recv(PIECE)
        if not piece or len(head) > HEAD_MAX:
            raise Failure(BROKEN, "CONNECT tunnel failed, no response")
        head += piece
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise _refusal(status, _rest(raw, head[end + 4 :], until), url)


def _rest(raw: socket.socket, data: bytes, until: float | None) -> bytes:
    while len(data) < HEAD_MAX:
        _timed(raw, until)
        piece = raw.recv(PIECE)
        if not piece:
            break
        data += piece
    return data


def _refusal(status: list[bytes], body: bytes, url: Url) -> Failure:
    number = status[0].decode("latin-1") if status else "?"
    try:
        said = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        said = ""
    if number in ("503", "504"):
        return Failure(REFUSED, f"Failed to connect to {url.host} port {url.port}: {said or 'no answer'}")
    if said == "The host has no address.":
        return Failure(UNRESOLVED, f"Could not resolve host: {url.host}")
    return Failure(BROKEN, f"CONNECT tunnel failed, response {number}{': ' if said else ''}{said}")


def _request(ask: Ask) -> bytes:
    target = ask.url.target if ask.url.scheme == "https" else f"http://{ask.url.authority_shown}{ask.url.target}"
    lines = [f"{ask.method} {target} HTTP/1.1"]
    if not any(name.lower() == "host" for name, _ in ask.headers):
        lines.append(f"Host: {ask.url.authority_shown}")
    lines += [f"{name}: {value}" for name, value in ask.headers]
    if ask.body is not None:
        lines.append(f"Content-Length: {len(ask.body)}")
    lines += ["Connection: close", "", ""]
    return "\r\n".join(lines).encode("utf-8")


def _redirected(ask: Ask, status: int, target: str) -> Ask:
    url = joined(ask.url, target)
    headers = ask.headers
    if url.origin != ask.url.origin:
        headers = tuple(pair for pair in headers if pair[0].lower() not in _PRIVATE)
    drops = status == 303 or (status in (301, 302) and ask.method == "POST")
    if not drops or ask.method == "HEAD":
        return replace(ask, url=url, headers=headers)
    headers = tuple(pair for pair in headers if pair[0].lower() != "content-type")
    method = ask.method if ask.forced else "GET"
    return replace(ask, url=url, headers=headers, body=None, method=method)


def _head_of(response: HTTPResponse) -> str:
    version = "HTTP/1.0" if response.version == 10 else "HTTP/1.1"
    lines = [f"{version} {response.status} {response.reason}".rstrip()]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    return "".join(f"{line}\r\n" for line in [*lines, ""])
