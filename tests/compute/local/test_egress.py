"""The way out of a pod: its own loopback, and behind that the gate alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from environments.compute.forwarding import HEAD_MAX, MOST, with_token
from environments.compute.local.driver import LocalDriver
from tests.compute.local.helpers import ControlPlane, joined, spec

CA = "-----BEGIN CERTIFICATE-----\nof the gate\n-----END CERTIFICATE-----\n"


class Gate:
    """Takes heads, answers ``hello``, and returns whatever follows."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(ConnectionError):
            data = b""
            while b"\r\n\r\n" not in data:
                data += client.recv(65536)
            head, _, rest = data.partition(b"\r\n\r\n")
            self.heads.append(head)
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello " + rest)
            while piece := client.recv(65536):
                client.sendall(piece)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.close()


def test_programs_find_the_gate_and_the_token_stays_outside(
    driver: LocalDriver, plane: ControlPlane, gate: Gate
) -> None:
    """E-111, E-197: proxies and certificates are set; the supervisor shows the token, nothing inside can."""
    driver.apply(spec(plane.url, network=("example.org",), egress_url=gate.url, egress_ca=CA))
    pod = joined(driver, plane)
    assert pod.sh("tail -3 $CURL_CA_BUNDLE; cmp $SSL_CERT_FILE $GIT_SSL_CAINFO").splitlines() == CA.splitlines()
    said = pod.sh(
        "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT example.org:443 HTTP/1.1\\r\\nHost: example.org\\r\\n"
        "Proxy-Authorization: Bearer mine\\r\\n\\r\\nbytes' >&3; head -c 30 <&3; echo; env | grep -ci proxy="
    )
    assert said.split() == ["HTTP/1.1", "200", "OK", "hello", "bytes", "6"]
    (head,) = gate.heads
    assert head.split(b"\r\n") == [
        b"CONNECT example.org:443 HTTP/1.1",
        b"Host: example.org",
        b"Proxy-Authorization: Bearer e",
    ]


def test_many_bytes_go_both_ways_at_once(driver: LocalDriver, plane: ControlPlane, gate: Gate) -> None:
    """A tunnel stands still for neither end, and both ends are passed on."""
    driver.apply(spec(plane.url, network=("example.org",), egress_url=gate.url))
    pod = joined(driver, plane)
    said = pod.sh(
        "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT a.org:443 HTTP/1.1\\r\\n\\r\\n' >&3; "
        "head -c 20000000 /dev/zero >&3 & exec 3<>/dev/tcp/127.0.0.1/3128; "
        "printf 'CONNECT b.org:443 HTTP/1.1\\r\\n\\r\\n' >&3; (head -c 20000000 /dev/zero >&3 &) ; "
        "head -c 20000025 <&3 | wc -c"
    )
    assert said.split() == ["20000025"]


def test_without_a_network_nothing_leads_out(driver: LocalDriver, plane: ControlPlane, gate: Gate) -> None:
    """E-50: no listener, no variables, no certificates of ours."""
    driver.apply(spec(plane.url, egress_url=gate.url))
    pod = joined(driver, plane)
    said = pod.sh("env | grep -ci proxy=; ls /run; (exec 3<>/dev/tcp/127.0.0.1/3128) 2>/dev/null || echo refused")
    assert said.split() == ["0", "nylorun", "refused"]
    assert gate.heads == []


def test_before_the_join_and_without_a_gate_the_answer_is_503(driver: LocalDriver, plane: ControlPlane) -> None:
    """What cannot be asked is told as such, and hangs nothing."""
    driver.apply(spec(plane.url, network=("example.org",), egress_url="http://127.0.0.1:9"))
    pod = joined(driver, plane)
    said = pod.sh("exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://a.org/ HTTP/1.1\\r\\n\\r\\n' >&3; head -1 <&3")
    assert said.split()[1] == "503"


def test_connections_are_bounded_and_a_head_without_an_end_is_dropped(
    driver: LocalDriver, plane: ControlPlane, gate: Gate
) -> None:
    """Pain 5: a hostile program neither fills the supervisor nor keeps the next program out."""
    driver.apply(spec(plane.url, network=("example.org",), egress_url=gate.url))
    pod = joined(driver, plane)
    said = pod.sh(
        f'for i in $(seq {MOST + 20}); do exec {{fd}}<>/dev/tcp/127.0.0.1/3128 && eval "f$i=$fd"; done; '
        f"read -t 5 -u $f{MOST + 10} x; echo $?"
    )
    assert said.split() == ["1"], "closed at once"
    said = pod.sh(
        f"exec 3<>/dev/tcp/127.0.0.1/3128; (head -c {2 * HEAD_MAX} /dev/zero | tr '\\0' x >&3) 2>/dev/null; "
        "timeout 10 cat <&3 | wc -c"
    )
    assert said.split() == ["0"]
    assert gate.heads == []


def test_a_plain_request_is_the_last_of_its_connection() -> None:
    """One token for one request: what a client says of proxies and of staying is replaced."""
    head = (
        b"GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\nconnection: keep-alive\r\nPROXY-Authorization: x\r\nA: b\r\n\r\n"
    )
    assert with_token(head, "t") == (
        b"GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\nA: b\r\nConnection: close\r\n"
        b"Proxy-Authorization: Bearer t\r\n\r\n"
    )
