"""A small HTTP client of the API: one connection a call, JSON in and out. Standard library only."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT = 150.0
_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class Unexpected(Exception):
    """The API answered something else than was asked for; the text shows what."""


@dataclass(frozen=True)
class Answer:
    """One answer; ``body`` is the parsed JSON, or the bytes of raw content."""

    status: int
    body: Any


@dataclass(frozen=True)
class Client:
    """Calls with one application key. An ``https`` URL is verified; a path in it stands before every route."""

    url: str
    key: str

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request; ``raw`` sends bytes instead of JSON.

        Raises ``OSError`` or ``http.client.HTTPException`` when there is no answer, ``ValueError`` for a URL that is
        none or an answer that is not the JSON it says.
        """
        connection, base = self._connection()
        sent = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        content = raw
        if body is not None:
            content = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        try:
            connection.request(method, base + path, content, sent)
            response = connection.getresponse()
            received = response.read()
        finally:
            connection.close()
        is_json = (response.getheader("Content-Type") or "").startswith("application/json")
        return Answer(response.status, json.loads(received) if is_json else received)

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        """The one that the scheme asks for: a key never leaves in clear where TLS was named."""
        address = urlsplit(self.url)
        made = _CONNECTIONS.get(address.scheme)
        if made is None or not address.hostname:
            raise ValueError("not an http or https URL")
        return made(address.hostname, address.port, timeout=TIMEOUT), address.path.rstrip("/")

    def expect(self, status: int, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The body of an answer that has this status; raises :class:`Unexpected` otherwise."""
        answer = self.call(method, path, body, **options)
        if answer.status != status:
            raise Unexpected(f"{method} {path}: {answer.status} instead of {status}: {answer.body!r}")
        return answer.body


def environment_path(environment_id: str, rest: str = "") -> str:
    """The route of an Environment: its id is one segment, percent-encoded."""
    return f"/v1/environments/{quote(environment_id, safe='')}{rest}"
