"""Joining the control plane for an Engine, and staying joined. HTTP by hand: a library would cost each pod 10 MB.

A reader may rely on:
  * join is asked again after a refusal or no answer, first soon, then every ``AGAIN`` seconds. Refusals for
    ``DEADLINE`` seconds on end, and for a pod that never joined no answer for as long, are its end (``run`` returns);
  * once joined, a control plane that does not answer changes nothing: renewing is tried again for ever;
  * a refused renewal is followed by a new join; each epoch that is given is told to the Engine;
  * the join token stays on the host's side, tokens are kept in memory, and neither is ever logged.

Standard library only, and of that only what starts fast: the supervisor loads this file.
"""

from __future__ import annotations

import _socket
import time

from environments.compute.engine import jsonc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

DEADLINE = 300.0
FIRST_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5)
AGAIN = 2.0
RENEW_AGAIN_MOST = 30.0
HTTP_SECONDS = 20.0
ANSWER_MAX = 1 << 20


class Silent(Exception):
    """Nobody answered, or the answer was that the service is not there."""


class Declined(Exception):
    """The control plane said no."""


class Joining:
    """The conversation of one pod with the control plane at ``url``.

    ``tell`` gives an epoch to the Engine, or raises ``OSError``; then the control plane is asked again.
    """

    def __init__(
        self, url: str, body: dict[str, Any], read_token: Callable[[], str], tell: Callable[[int], None]
    ) -> None:
        self._url = url.rstrip("/")
        self._body = body
        self._read_token = read_token
        self._tell = tell
        self.egress_token: str | None = None
        """Shown to the egress gate; as fresh as the last join or renewal."""
        self._host_token: str | None = None
        self._epoch: int | None = None

    def run(self, renew_seconds: float) -> str:
        """Join, then renew every ``renew_seconds``; returns only at the pod's end, with the reason in a sentence."""
        while self._join():
            self._renew_until_refused(renew_seconds)
        return f"The control plane refused this pod for {DEADLINE:.0f} s."

    def _join(self) -> bool:
        """Join; ``False`` when it was refused, or at the first time not answered, for ``DEADLINE``."""
        pauses = iter(FIRST_PAUSES)
        since = time.monotonic()
        while time.monotonic() - since < DEADLINE:
            try:
                self._take(self._post("join", {**self._body, "joinToken": self._read_token()}, None))
            except Silent:
                if self._epoch is not None:
                    since = time.monotonic()
            except Declined:
                pass
            else:
                return True
            _pause(next(pauses, AGAIN))
        return False

    def _renew_until_refused(self, every: float) -> None:
        pause = every
        while True:
            _pause(pause)
            try:
                self._take(self._post("renew", {}, self._host_token))
            except Silent:
                pause = min(every, AGAIN if pause == every else pause * 2, RENEW_AGAIN_MOST)
            except Declined:
                return
            else:
                pause = every

    def _take(self, answer: Any) -> None:
        """Keep what a join or renewal gave; an answer without it is none."""
        if not isinstance(answer, dict):
            raise Silent
        token, epoch = answer.get("hostToken"), answer.get("epoch")
        if not isinstance(token, str) or isinstance(epoch, bool) or not isinstance(epoch, int):
            raise Silent
        if epoch != self._epoch:
            try:
                self._tell(epoch)
            except OSError:
                raise Silent from None
        egress = answer.get("egressToken")
        self.egress_token = egress if isinstance(egress, str) else None
        self._host_token, self._epoch = token, epoch

    def _post(self, what: str, body: dict[str, Any], token: str | None) -> Any:
        try:
            status, answer = post(f"{self._url}/v1/engine/{what}", jsonc.dumps(body).encode("ascii"), token)
        except (OSError, ValueError):
            raise Silent from None
        if status == 200:
            try:
                return jsonc.loads(answer)
            except ValueError:
                raise Silent from None
        if 400 <= status < 500 and status not in (408, 429):
            raise Declined
        raise Silent


def _pause(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 - a thread of its own, which ends with the supervisor


def post(url: str, body: bytes, token: str | None) -> tuple[int, bytes]:
    """POST ``body`` as JSON; the status and the answer's body. Raises ``OSError`` and ``ValueError``."""
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    if scheme == "https":
        return _post_tls(authority, f"/{path}", body, token)
    if scheme != "http":
        raise ValueError("the control plane is reached by http or https")
    lines = [f"POST /{path} HTTP/1.0", f"Host: {authority}"]
    lines += [f"{name}: {value}" for name, value in _headers(body, token).items()]
    request = "\r\n".join([*lines, "", ""]).encode("ascii") + body
    return _parse(_exchange(*_address(authority), request))


def _headers(body: bytes, token: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Content-Length": str(len(body))}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _address(authority: str) -> tuple[str, int]:
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):  # no port: a plain name, or an IPv6 address in its brackets
        host, port = authority, "80"
    return host.strip("[]"), int(port)


def _exchange(host: str, port: int, request: bytes) -> bytes:
    """Send ``request`` and read to the end; in HTTP/1.0 the end of the connection ends the answer."""
    failure: OSError = OSError("no address")
    for family, kind, protocol, _, address in _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM):
        sock = _socket.socket(family, kind, protocol)
        try:
            sock.settimeout(HTTP_SECONDS)
            sock.connect(address)
            sock.sendall(request)
            return _read_all(sock)
        except OSError as error:
            failure = error
        finally:
            sock.close()
    raise failure


def _read_all(sock: _socket.socket) -> bytes:
    answer = bytearray()
    while piece := sock.recv(65536):
        answer += piece
        if len(answer) > ANSWER_MAX:
            raise ValueError("the answer is too long")
    return bytes(answer)


def _parse(answer: bytes) -> tuple[int, bytes]:
    head, separator, body = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise ValueError("not an HTTP answer")
    return int(words[1]), body


def _post_tls(authority: str, path: str, body: bytes, token: str | None) -> tuple[int, bytes]:
    from http.client import HTTPException, HTTPSConnection  # noqa: PLC0415 - large, and rarely needed

    connection = HTTPSConnection(authority, timeout=HTTP_SECONDS)
    try:
        connection.request("POST", path, body, _headers(body, token))
        response = connection.getresponse()
        return response.status, response.read(ANSWER_MAX)
    except HTTPException as error:
        raise ValueError("not an HTTP answer") from error
    finally:
        connection.close()
