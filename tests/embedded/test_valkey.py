"""The launcher of Valkey: what it keeps, whom it runs as, who can reach it."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from kombu.connection import Connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from nylorun.embedded.places import SERVER_UID
from nylorun.embedded.valkey import PORTS, Valkey
from tests.embedded.support import closing_server, uid_of


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with closing_server(Valkey(tmp_path / "valkey", durable=True)) as server:
        server.start()
        yield server


def client(server: Valkey) -> "closing[redis.Redis]":
    return closing(redis.Redis.from_url(server.url))


def port_of(server: Valkey) -> int:
    return int(server.url.rpartition(":")[2].split("/")[0])


def test_a_list_survives_a_kill(valkey: Valkey) -> None:
    with client(valkey) as before:
        before.rpush("kept", *range(100))
    url = valkey.url
    os.kill(valkey.process.pid, signal.SIGKILL)
    valkey.start()
    assert valkey.url == url
    with client(valkey) as after:
        assert after.lrange("kept", 0, -1) == [str(n).encode() for n in range(100)]


def test_a_server_that_still_runs_on_the_folder_is_ended_before_a_new_one_starts(valkey: Valkey) -> None:
    with client(valkey) as before:
        before.set("kept", "1")
    with closing_server(Valkey(valkey.folder, durable=True)) as second:
        second.start()
        assert valkey.process.wait(5) == 0
        with client(second) as after:
            assert after.get("kept") == b"1"


def test_it_refuses_who_has_not_the_password(valkey: Valkey) -> None:
    with (
        closing(redis.Redis(port=port_of(valkey), retry=Retry(NoBackoff(), 0))) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_the_password_is_in_no_argument(valkey: Valkey) -> None:
    password = (valkey.folder / "password").read_text()
    assert password in valkey.url
    assert password.encode() not in Path(f"/proc/{valkey.process.pid}/cmdline").read_bytes()


def test_the_same_url_serves_celery(valkey: Valkey) -> None:
    connection = Connection(valkey.url)  # type: ignore[no-untyped-call]  # kombu has no types
    with connection, closing(connection.SimpleQueue("wakes")) as queue:  # type: ignore[no-untyped-call]
        queue.put({"id": "env-1"})
        message = queue.get(timeout=5)
        assert message.payload == {"id": "env-1"}
        message.ack()


def test_a_port_taken_by_somebody_else_is_changed_at_the_next_start(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        folder = tmp_path / "valkey"
        folder.mkdir()
        (folder / "port").write_text(str(taken))
        with closing_server(Valkey(folder, durable=False)) as server:
            server.start()
            assert port_of(server) in PORTS
            assert (folder / "port").read_text() == str(port_of(server))


def test_root_runs_it_as_an_ordinary_user(valkey: Valkey) -> None:
    assert uid_of(valkey.process.pid) == (SERVER_UID if os.geteuid() == 0 else os.geteuid())
