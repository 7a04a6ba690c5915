"""The bytes of a request, bounded by their route and read once.

``Content-Length`` and chunked transfer are both taken; the server in front (gunicorn) decodes chunks and ends the
stream. A body that ends before its stated length is a fault of the request, never a short success.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from nylorun.kernel.errors import ByteLimitExceeded, InvalidRequest, UnsupportedMediaType

BODY_MAX = 1 << 20
CHUNK = 64 << 10
AHEAD_MAX = 64 << 10
"""A stated body of at most this size is read before anything is asked of the database."""
_AHEAD = "nylorun.read_ahead"
_LENGTH = re.compile(r"[0-9]{1,19}")
_UTF8 = frozenset({"utf-8", "utf8"})


class RawBody:
    """A body as a stream of at most ``limit`` bytes; ``length`` is the stated one, ``None`` when chunked."""

    def __init__(self, environ: dict[str, Any], limit: int, name: str = "body") -> None:
        self._input = environ["wsgi.input"]
        self._limit, self._name = limit, name
        self.length = stated_length(environ)
        if self.length is not None and self.length > limit:
            raise self._too_large()

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        """The bytes, once, in pieces of at most ``size``; raises while reading when the limit is passed."""
        seen = 0
        while self.length is None or seen < self.length:
            wanted = size if self.length is None else min(size, self.length - seen)
            try:
                piece = self._input.read(wanted)
            except Exception as error:  # the server's reader has errors of its own for a broken transfer
                raise _cut_short() from error
            if not piece:
                break
            seen += len(piece)
            if seen > self._limit:
                raise self._too_large()
            yield piece
        if self.length is not None and seen < self.length:
            raise _cut_short()

    def read(self) -> bytes:
        """All bytes at once: for bodies whose limit fits memory."""
        return b"".join(self.chunks())

    def _too_large(self) -> ByteLimitExceeded:
        return ByteLimitExceeded(
            f"The {self._name} has more than {self._limit} bytes.",
            details={"limit": self._name, "limitBytes": self._limit},
        )


def read_ahead(environ: dict[str, Any]) -> None:
    """Take a small body off the connection now, at its sender's pace, while nobody holds anything for this request.

    Nothing of it is judged here: what is wrong with it is found by its reader, in the order of checks.
    """
    text = environ.get("CONTENT_LENGTH") or ""
    if "HTTP_TRANSFER_ENCODING" in environ or _LENGTH.fullmatch(text) is None or not 0 < int(text) <= AHEAD_MAX:
        return
    try:
        data = environ["wsgi.input"].read(int(text))
    except Exception:  # noqa: BLE001 a broken transfer is a body that ends early, whatever the server's reader calls it
        data = b""
    environ["wsgi.input"] = io.BytesIO(data)
    environ[_AHEAD] = True


def is_at_hand(environ: dict[str, Any]) -> bool:
    """Whether reading the body waits for nobody: it was read ahead, or there is none."""
    if "HTTP_TRANSFER_ENCODING" in environ:
        return False
    return environ.get(_AHEAD, False) or environ.get("CONTENT_LENGTH") in (None, "", "0")


def stated_length(environ: dict[str, Any]) -> int | None:
    """``Content-Length``; 0 when there is no body, ``None`` when the transfer is chunked."""
    if environ.get("HTTP_TRANSFER_ENCODING") and environ.get("wsgi.input_terminated"):
        return None
    text = environ.get("CONTENT_LENGTH") or "0"
    if _LENGTH.fullmatch(text) is None:
        raise InvalidRequest([{"path": "Content-Length:", "message": "must be a number of bytes"}])
    return int(text)


def media_type(environ: dict[str, Any]) -> str:
    """The media type in lower case, without parameters; an explicit charset other than UTF-8 is refused."""
    kind, *parameters = (environ.get("CONTENT_TYPE") or "").split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in _UTF8:
            raise UnsupportedMediaType("Send the body as UTF-8.")
    return kind.strip().lower()


def read_document(environ: dict[str, Any], limit: int, types: tuple[str, ...]) -> tuple[str, bytes]:
    """Media type and bytes of a document of one of ``types``; an empty body needs no type and counts as the first."""
    body = RawBody(environ, limit)
    if body.length == 0:
        return types[0], b""
    kind = media_type(environ)
    if kind in types:
        return kind, body.read()
    if body.length is None and not body.read():
        return types[0], b""
    raise UnsupportedMediaType(f"Send the body as {' or '.join(types)}.")


def _cut_short() -> InvalidRequest:
    return InvalidRequest([{"path": "", "message": "is malformed or ended before its stated length"}])
