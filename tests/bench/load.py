"""A load of requests over kept connections, with as little of its own as Python allows; times in milliseconds."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit


class Caller:
    """One kept connection that sends one prepared request again and again."""

    def __init__(self, url: str, method: str, path: str, key: str = "", body: bytes = b"") -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((str(address.hostname), address.port or 80))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        if body:
            head += "Content-Type: application/json\r\n"
        if key:
            head += f"Authorization: Bearer {key}\r\n"
        self._request = head.encode() + b"\r\n" + body

    def __call__(self) -> None:
        """One request; raises unless the answer is a success."""
        self._socket.sendall(self._request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._more()
        head, _, rest = received.partition(b"\r\n\r\n")
        if head[9:10] != b"2":
            raise RuntimeError(received.decode(errors="replace")[:500])
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(rest) < length:
            rest += self._more()

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise RuntimeError("the server hung up")
        return data

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def timed(act: Callable[[], object]) -> float:
    """How long one act takes, in milliseconds."""
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1000


def p50(samples: list[float]) -> float:
    """The median."""
    return statistics.median(samples)


def under_load(make: Callable[[], Caller], clients: int, seconds: float = 4.0) -> list[float]:
    """Times of every request that ``clients`` callers made in that many seconds."""
    times: list[float] = []
    over = time.monotonic() + seconds

    def run() -> None:
        caller = make()
        mine = []
        while time.monotonic() < over:
            mine.append(timed(caller))
        caller.close()
        times.extend(mine)

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def alternating(first: Callable[[], None], second: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Medians of two acts taken in turns, so that a noisy moment touches both."""
    one, other = [], []
    for _ in range(rounds):
        one.append(timed(first))
        other.append(timed(second))
    return p50(one), p50(other)
