"""Every process is killed while every verb is under way; afterwards everything converges and nothing is left.

One round kills one part with SIGKILL while a create, a wake, a stop, a reset, a delete and a Tool call run on six
Environments. The callers send again what was not answered, as applications do; a Tool call is never sent again.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from nylorun.cli.client import Client, environment_path
from nylorun.kernel.clock import monotonic, pause
from tests.support.platform import Platform, eventually, platform, start

pytestmark = pytest.mark.live

POD = {"kind": "pod", "resources": {"cpus": 1, "memory": "256MiB"}}


@pytest.fixture(scope="module")
def live() -> Iterator[Platform]:
    """One platform for all rounds."""
    with platform("--driver", "local") as running:
        yield running


def sent(client: Client, method: str, path: str, body: Any = None) -> Any:
    """Send until it is answered with a success: what an application does after a lost connection or a 503."""

    def once() -> Any:
        answer = client.call(method, path, body)
        return answer if answer.status < 400 else None

    return eventually(once, what=f"{method} {path}")


def prepare(live: Platform, round: str) -> None:
    """Five pods in the states the verbs begin from."""
    for verb in ("wake", "stop", "reset", "delete", "call"):
        live.client.expect(201, "PUT", environment_path(f"{verb}-{round}"), POD)
    for verb in ("wake", "stop", "reset", "delete", "call"):
        live.bash(f"{verb}-{round}", "echo kept > kept.txt")
    live.client.expect(200, "POST", environment_path(f"wake-{round}", "/stop"), {})
    eventually(lambda: live.view(f"wake-{round}")["pod"]["observed"] == "suspended")


def verbs(live: Platform, round: str) -> dict[str, Callable[[], Any]]:
    """Every verb, as its caller sends it."""
    client = live.client

    def call() -> Any:
        command = {"command": "echo ran >> log.txt; sleep 0.6"}
        return client.call("POST", environment_path(f"call-{round}", "/tools/bash"), command)

    return {
        "create": lambda: sent(client, "PUT", environment_path(f"create-{round}"), POD),
        "wake": lambda: sent(client, "POST", environment_path(f"wake-{round}", "/wake"), {}),
        "stop": lambda: sent(client, "POST", environment_path(f"stop-{round}", "/stop"), {}),
        "reset": lambda: sent(client, "POST", environment_path(f"reset-{round}", "/reset"), {}),
        "delete": lambda: sent(client, "DELETE", environment_path(f"delete-{round}")),
        "call": call,
    }


def all_at_once(acts: dict[str, Callable[[], Any]], accident: Callable[[], None]) -> None:
    """Begin every act, let the accident happen in the middle, and wait for all of them."""
    begun = threading.Barrier(len(acts) + 1)

    def run(act: Callable[[], Any]) -> None:
        begun.wait()
        try:
            act()
        except (OSError, ValueError):
            return  # a lost connection is what the accident is for

    threads = [threading.Thread(target=run, args=(act,)) for act in acts.values()]
    for thread in threads:
        thread.start()
    begun.wait()
    accident()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("after_ms", [5, 120])
@pytest.mark.parametrize("victim", ["api", "worker", "beat", "engine", "pod", "postgres", "valkey"])
def test_a_killed_process_costs_time_and_nothing_else(live: Platform, victim: str, after_ms: int) -> None:
    """E-255, E-270, pains 2, 8, 31, 40: every Environment converges, events have no gap, no call runs twice."""
    round = f"{victim}-{after_ms}"
    prepare(live, round)

    def accident() -> None:
        pause(after_ms / 1000)
        if victim == "pod":
            live.kill_pod(f"call-{round}")
        else:
            live.kill(victim)

    all_at_once(verbs(live, round), accident)
    eventually(live.ready, within=90, what="ready again")
    observed = {"create": "running", "wake": "running", "stop": "suspended", "reset": "running"}
    for verb, wanted in observed.items():
        id = f"{verb}-{round}"
        eventually(lambda id=id, wanted=wanted: live.view(id)["pod"]["observed"] == wanted, what=f"{id} is {wanted}")  # type: ignore[misc]
    assert live.bash(f"wake-{round}", "cat kept.txt") == "kept\n"
    assert live.bash(f"stop-{round}", "cat kept.txt") == "kept\n"
    assert live.bash(f"reset-{round}", "ls") == ""
    assert live.bash(f"call-{round}", "cat log.txt 2>/dev/null || true") in ("", "ran\n")
    assert live.client.call("GET", environment_path(f"delete-{round}")).status == 404
    eventually(lambda: not names(live, f"delete-{round}"), what="the deleted pod is gone")
    for verb in ("create", "wake", "stop", "reset", "delete", "call"):
        types = live.event_types(f"{verb}-{round}")
        assert types.count("created") == 1
        assert types.count("deleted") == (verb == "delete")
        assert types.count("lost") == types.count("failed") == 0
        live.client.expect(200, "DELETE", environment_path(f"{verb}-{round}", "?force=true"))
    eventually(lambda: not any((live.folder / "pods").glob("sbx-*")), what="every pod of the round is gone")


def names(live: Platform, environment_id: str) -> list[str]:
    """Pods of this Environment that are still on the machine."""
    found = []
    for place in (live.folder / "pods").glob("sbx-*"):
        if json.loads((place / "object.json").read_text()).get("environmentId") == environment_id:
            found.append(place.name)
    return found


def test_a_killed_platform_comes_back_with_its_state_and_adopts_running_pods(live: Platform) -> None:
    """E-255: SIGKILL of the supervisor: the pod goes on; a new one on the same folder finds rows and pods."""
    live.client.expect(201, "PUT", environment_path("stays"), POD)
    live.bash("stays", "echo kept > kept.txt; sleep 1000 >/dev/null 2>&1 &")
    before = json.loads((live.pod("stays") / "pod.json").read_text())
    live.process.send_signal(signal.SIGKILL)
    live.process.wait()
    again = start(live.folder, "--driver", "local")
    live.process, live.client = again.process, again.client
    assert live.bash("stays", "cat kept.txt") == "kept\n"
    assert json.loads((live.pod("stays") / "pod.json").read_text())["podUid"] == before["podUid"]
    assert live.event_types("stays") == ["created", "running"]


def test_virtual_workspaces_survive_their_engine(live: Platform) -> None:
    """E-256: a crashed Engine restarts and no workspace is lost; the call in flight is never run twice."""
    live.client.expect(201, "PUT", environment_path("shell"), {})
    live.bash("shell", "echo kept > kept.txt")
    command = {"command": "echo ran >> log.txt; sleep 5"}
    path = environment_path("shell", "/tools/bash")
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(live.client.call("POST", path, command)))
    caller.start()
    eventually(lambda: "ran" in live.bash("shell", "cat log.txt 2>/dev/null || true"), what="the command runs")
    live.kill("engine")
    caller.join()
    assert answers[0].body["code"] == "tool.interrupted"
    assert live.bash("shell", "cat kept.txt log.txt") == "kept\nran\n"


def test_fifty_parallel_calls_on_a_stopped_pod_make_one_wake(live: Platform) -> None:
    """E-86, pain 30: one start, fifty answers."""
    live.client.expect(201, "PUT", environment_path("burst"), POD)
    live.bash("burst", "true")
    live.client.expect(200, "POST", environment_path("burst", "/stop"), {})
    eventually(lambda: live.view("burst")["pod"]["observed"] == "suspended")
    outputs: list[str] = []
    threads = [threading.Thread(target=lambda: outputs.append(live.bash("burst", "echo hi"))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == ["hi\n"] * 50
    assert live.event_types("burst") == ["created", "running", "suspended", "running"]


def test_rows_are_written_while_the_broker_is_down_and_work_starts_when_it_is_back(live: Platform) -> None:
    """E-113, E-275: requests that only write rows still answer; nothing is lost with Redis."""
    valkey = live.part("valkey")
    valkey.suspend()
    try:
        live.client.expect(201, "PUT", environment_path("patient"), POD)
        assert live.view("patient")["state"] == "creating"
        live.client.expect(200, "DELETE", environment_path("burst", "?force=true"))
    finally:
        valkey.resume()
    eventually(lambda: live.view("patient")["state"] == "running", what="patient runs")
    eventually(lambda: not names(live, "burst"), what="burst is gone")


def test_a_database_that_is_down_is_503_without_a_traceback(live: Platform) -> None:
    """Pain 23: never a 500; the next request after it is back is served."""
    live.kill("postgres")
    answer = live.client.call("GET", "/v1/environments")
    assert answer.status in (200, 503)
    assert "Traceback" not in str(answer.body)
    eventually(live.ready, within=90, what="ready again")
    live.client.expect(200, "GET", "/v1/environments")


def raw(live: Platform, request: bytes) -> socket.socket:
    """A connection that sent these bytes and waits."""
    address = urlsplit(live.client.url)
    connection = socket.create_connection((str(address.hostname), address.port or 80), timeout=60)
    connection.sendall(request)
    return connection


def head(live: Platform, method: str, path: str, *more: str) -> bytes:
    """The head of a request with the application's key."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {live.client.key}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_streams_and_stalled_bodies_never_stop_the_short_requests(live: Platform) -> None:
    """E-295: none of those that wait holds a database connection: thirty of each, and a read answers at once."""
    live.client.expect(201, "PUT", environment_path("streams"), {})
    command = b'{"command":"echo begun; sleep 6"}'
    stream = head(
        live, "POST", environment_path("streams", "/tools/bash"), "Accept: text/event-stream",
        "Content-Type: application/json", f"Content-Length: {len(command)}",
    )  # fmt: skip
    stalled = head(live, "PUT", environment_path("stalled"), "Content-Type: application/json", "Content-Length: 10")
    open_ones = [raw(live, stream + command) for _ in range(30)] + [raw(live, stalled + b"{") for _ in range(30)]
    try:
        for _ in range(20):
            began = monotonic()
            live.client.expect(200, "GET", environment_path("streams"))
            assert monotonic() - began < 2
    finally:
        for connection in open_ones:
            connection.close()
    assert live.client.call("GET", environment_path("stalled")).status == 404


CHUNKED = b"PUT /v1/environments/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{key}\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
        b"GET /v1/environments HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_the_parser_refuses_is_json_too(live: Platform, request_bytes: bytes) -> None:
    """E-223: a broken transfer is a 4xx in the words of this interface, never a 500 and never a page."""
    key = f"Content-Type: application/json\r\nAuthorization: Bearer {live.client.key}".encode()
    with raw(live, request_bytes.replace(b"{key}", key)) as connection:
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
            if b"\r\n\r\n" in answer and answer.endswith(b"}"):
                break
    status = int(answer.split(b" ", 2)[1])
    assert 400 <= status < 500
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == "rejected"
    assert live.client.call("GET", environment_path("x")).status == 404
