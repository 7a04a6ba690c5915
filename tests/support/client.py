"""A client of the WSGI application itself: raw paths, real bytes, streamed answers; no network.

    api = Api.for_application("tests")
    api.put("/v1/environments/a%2Fb", {"kind": "pod"}).status
    api.as_subject("ada", "sessions:own").get("/v1/me").json

The request target is handed over undecoded, as gunicorn does it (``RAW_URI``).
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes

from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection

from nylorun.access.authentication import key_hash
from nylorun.access.models import Principal
from nylorun.wsgi import application


@contextmanager
def _connection_kept() -> Iterator[None]:
    """A test inside a transaction keeps its connection, which Django would close around each request."""
    if not connection.in_atomic_block:
        yield
        return
    both = (request_started, request_finished)
    for signal in both:
        signal.disconnect(close_old_connections)
    try:
        yield
    finally:
        for signal in both:
            signal.connect(close_old_connections)


@dataclass
class Answer:
    """One answer; ``chunks`` reads the body piece by piece, ``body`` reads the rest of it at once."""

    status: int
    headers: dict[str, str]
    _parts: Iterable[bytes]
    _body: bytes | None = None

    def chunks(self) -> Iterator[bytes]:
        """The pieces of a streamed answer; leaving early closes it as a disconnecting client does."""
        try:
            yield from self._parts
        finally:
            self.close()

    def close(self) -> None:
        """Hang up."""
        with _connection_kept():
            getattr(self._parts, "close", lambda: None)()

    @property
    def body(self) -> bytes:
        """All bytes."""
        if self._body is None:
            self._body = b"".join(self.chunks())
        return self._body

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class _Chunked(io.RawIOBase):
    """The decoded stream of a chunked body, as the server hands it on."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._rest = iter(chunks), b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            piece = next(self._chunks, None)
            if piece is None:
                break
            self._rest += piece
        size = len(self._rest) if size < 0 else size
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


@dataclass(frozen=True)
class Api:
    """Requests with the same headers; every method of this interface has one of its own."""

    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def for_application(cls, name: str = "tests") -> Api:
        """A client with the key of a new application."""
        key = secrets.token_hex(32)
        Principal.objects.create(id=name, token_hash=key_hash(key), created_at=datetime.now(UTC))  # noqa: TID251 a row of the past
        return cls({"Authorization": f"Bearer {key}"})

    def with_headers(self, **headers: str | None) -> Api:
        """The same client with other headers (``_`` stands for ``-``); ``None`` leaves one out."""
        renamed = {name.replace("_", "-"): value for name, value in headers.items()}
        merged = {**self.headers, **renamed}
        return replace(self, headers={name: value for name, value in merged.items() if value is not None})

    def as_subject(self, subject: str, *scopes: str) -> Api:
        """The same application, acting for a person."""
        return self.with_headers(Nylorun_Subject=subject, Nylorun_Scopes=" ".join(scopes))

    def get(self, target: str, **headers: str) -> Answer:
        return self.request("GET", target, None, headers)

    def head(self, target: str, **headers: str) -> Answer:
        return self.request("HEAD", target, None, headers)

    def delete(self, target: str, body: Any = None, **headers: str) -> Answer:
        return self.request("DELETE", target, body, headers)

    def put(self, target: str, body: Any = None, **headers: str) -> Answer:
        return self.request("PUT", target, body, headers)

    def post(self, target: str, body: Any = None, **headers: str) -> Answer:
        return self.request("POST", target, body, headers)

    def request(self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send ``body``: a dict or list as JSON, bytes as they are, ``None`` as none, an iterator as a chunked one."""
        environ = _environ(method, target)
        _with_body(environ, body)
        extra = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        for name, value in {**self.headers, **extra}.items():
            key = name.upper().replace("-", "_")
            environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = value
        started: list[Any] = []
        with _connection_kept():
            parts = application(environ, lambda status, sent, exc_info=None: started.extend((status, sent)))
        return Answer(int(started[0].split(" ", 1)[0]), dict(started[1]), parts)


def _environ(method: str, target: str) -> dict[str, Any]:
    path, _, query = target.partition("?")
    return {
        "REQUEST_METHOD": method,
        "RAW_URI": target,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.input_terminated": True,
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def _with_body(environ: dict[str, Any], body: Any) -> None:
    if body is None:
        return
    if isinstance(body, dict | list):
        raw, environ["CONTENT_TYPE"] = json.dumps(body).encode(), "application/json"
    elif isinstance(body, bytes):
        raw = body
    else:
        environ["HTTP_TRANSFER_ENCODING"] = "chunked"
        environ["wsgi.input"] = _Chunked(body)
        return
    environ["CONTENT_LENGTH"] = str(len(raw))
    environ["wsgi.input"] = io.BytesIO(raw)
