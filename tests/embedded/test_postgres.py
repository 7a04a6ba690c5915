"""The launcher of PostgreSQL: what it keeps, whom it runs as, who can reach it."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from nylorun.embedded.places import SERVER_UID, SOCKET_PATH_MAX
from nylorun.embedded.postgres import Postgres
from nylorun.embedded.processes import running_in
from tests.embedded.support import closing_server, eventually, line_of, running, uid_of


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    server = Postgres(tmp_path / "postgres", durable=False)
    server.start()
    yield server
    server.stop()


def ask(server: Postgres, query: str) -> object:
    with psycopg.connect(server.url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def run(server: Postgres, statement: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(statement)


def socket_folder(server: Postgres) -> Path:
    return Path(parse_qs(urlsplit(server.url).query)["host"][0])


def test_committed_rows_survive_a_kill_of_everything(tmp_path: Path) -> None:
    first = Postgres(tmp_path / "postgres", durable=True)
    first.start()
    run(first, "CREATE TABLE kept (n int)")
    run(first, "INSERT INTO kept SELECT generate_series(1, 1000)")
    os.killpg(first.process.pid, signal.SIGKILL)

    with closing_server(Postgres(tmp_path / "postgres", durable=True)) as second:
        second.start()
        assert ask(second, "SELECT count(*) FROM kept") == 1000
    first.stop()


def test_the_same_server_object_starts_again_after_its_process_was_killed(postgres: Postgres) -> None:
    run(postgres, "CREATE TABLE kept AS SELECT 7 AS n")
    run(postgres, "CHECKPOINT")
    url = postgres.url
    os.kill(postgres.process.pid, signal.SIGKILL)
    postgres.start()
    assert postgres.url == url
    assert ask(postgres, "SELECT n FROM kept") == 7


def test_a_server_that_still_runs_on_the_folder_is_ended_before_a_new_one_starts(postgres: Postgres) -> None:
    old = postgres.process
    with closing_server(Postgres(postgres.folder, durable=False)) as second:
        second.start()
        assert next(found.pid for found in running_in(second.data, "postgres")) == second.process.pid
        assert old.wait(5) == 0  # it was asked, and wrote its checkpoint


def test_backends_that_outlive_a_killed_postmaster_do_not_block_the_next_start(postgres: Postgres) -> None:
    with closing(psycopg.connect(postgres.url, autocommit=True)) as client:
        backend = client.info.backend_pid
        os.kill(backend, signal.SIGSTOP)  # it cannot notice that its postmaster is gone
        os.kill(postgres.process.pid, signal.SIGKILL)
        with closing_server(Postgres(postgres.folder, durable=False)) as second:
            second.start()
            assert ask(second, "SELECT 1") == 1
            assert backend not in [found.pid for found in running_in(second.data, "postgres")]


def test_a_half_made_cluster_is_made_again(tmp_path: Path) -> None:
    draft = tmp_path / "postgres" / "data.draft"
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18\n")
    with closing_server(Postgres(tmp_path / "postgres", durable=False)) as server:
        server.start()
        assert ask(server, "SELECT current_database()") == "nylorun"
    assert not draft.exists()


def test_root_runs_it_as_an_ordinary_user_even_below_a_closed_folder(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    wanted = SERVER_UID if os.geteuid() == 0 else os.geteuid()
    with closing_server(Postgres(closed / "postgres", durable=False)) as server:
        server.start()
        assert uid_of(server.process.pid) == wanted
        assert server.data.stat().st_uid == wanted


def test_only_its_own_user_can_enter_the_folder_of_its_socket(postgres: Postgres) -> None:
    folder = socket_folder(postgres).stat()
    assert stat.S_IMODE(folder.st_mode) == 0o700
    assert folder.st_uid == uid_of(postgres.process.pid)


def test_it_listens_on_no_tcp_port_unless_one_is_asked_for(postgres: Postgres) -> None:
    assert ask(postgres, "SHOW listen_addresses") == ""


def test_an_asked_port_takes_the_password_and_nothing_else(tmp_path: Path, free_port: int) -> None:
    with closing_server(Postgres(tmp_path / "postgres", durable=False, port=free_port)) as server:
        server.start()
        with psycopg.connect(server.tcp_url) as connection:
            assert connection.info.host == "127.0.0.1"
        assert ask(server, "SELECT 1") == 1
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.tcp_url.replace("nylorun:", "nylorun:x"))


def test_a_folder_too_deep_for_a_socket_gets_a_short_one_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / "postgres"
    with closing_server(Postgres(deep, durable=False)) as server:
        server.start()
        assert ask(server, "SELECT 1") == 1
        assert len(str(socket_folder(server) / ".s.PGSQL.5432")) <= SOCKET_PATH_MAX
        assert Postgres(deep, durable=False).url == server.url


def test_text_is_utf8_and_sorted_by_code_point(postgres: Postgres) -> None:
    words = "SELECT string_agg(w, ' ' ORDER BY w) FROM (VALUES ('b'), ('B'), ('a'), ('é'), ('z')) AS t(w)"
    assert ask(postgres, words) == "B a b z é"


def test_both_servers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, signal\n"
        "from nylorun.embedded.testing import servers\n"
        "with servers(pathlib.Path(sys.argv[1])) as urls:\n"
        "    print(*urls, flush=True)\n"
        "    signal.pause()\n"
    )
    with running(sys.executable, "-c", code, str(tmp_path)) as owner:
        assert line_of(owner).startswith("postgresql://")
        assert running_in(tmp_path / "postgres/data", "postgres")
        assert running_in(tmp_path / "valkey/data", "valkey-server")
    eventually(lambda: not running_in(tmp_path / "postgres/data", "postgres"))
    eventually(lambda: not running_in(tmp_path / "valkey/data", "valkey-server"))
