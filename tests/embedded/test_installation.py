"""The data folder: its secrets, its lock, and the environment its processes get."""

import base64
import json
import os
import socket
import stat
from pathlib import Path

import pytest

from nylorun.embedded.installation import CommandFailed, Installation, InUse, run_management
from nylorun.embedded.table import PLAIN_ENVIRONMENT, processes
from tests.embedded.support import plain_environment

OURS = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "NYLORUN_KEYRING", "NYLORUN_PUBLIC_URL")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(plain_environment()):
        monkeypatch.delenv(name)


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "data")


def environment(installation: Installation) -> dict[str, str]:
    return installation.environment(database_url="postgresql://d", redis_url="redis://r", NYLORUN_DRIVER="fake")


def test_the_first_start_draws_the_secrets_and_every_later_one_keeps_them(installation: Installation) -> None:
    first = environment(installation)
    keyring = installation.folder / "keyring"
    assert first["NYLORUN_KEYRING"] == f"file:{keyring}"
    assert [len(base64.b64decode(line)) for line in keyring.read_text().splitlines()] == [32]
    assert len(first["SECRET_KEY"]) >= 50
    for name in ("keyring", "secret_key"):
        assert stat.S_IMODE((installation.folder / name).stat().st_mode) == 0o600
    assert environment(Installation(installation.folder)) == first
    assert environment(Installation(installation.folder.with_name("other")))["SECRET_KEY"] != first["SECRET_KEY"]


def test_secrets_named_by_the_caller_are_used_and_none_is_drawn(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "from outside")
    monkeypatch.setenv("NYLORUN_KEYRING", "a2V5")
    found = environment(installation)
    assert (found["SECRET_KEY"], found["NYLORUN_KEYRING"]) == ("from outside", "a2V5")
    assert not (installation.folder / "keyring").exists()


def test_the_processes_are_told_where_everything_is(installation: Installation) -> None:
    found = environment(installation)
    assert found["DATABASE_URL"] == "postgresql://d"
    assert found["REDIS_URL"] == "redis://r"
    assert found["NYLORUN_DATA_DIR"] == str(installation.folder)
    assert found["NYLORUN_DRIVER"] == "fake"
    assert found["NYLORUN_VIRTUAL_ENGINE"] == f"unix:{installation.engine_socket()}"
    assert found["DJANGO_SETTINGS_MODULE"] == "nylorun.settings.prod"


def test_the_virtual_engine_sees_neither_database_nor_broker_nor_keyring(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OURS:
        monkeypatch.setenv(name, "secret of the caller")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        table = {part.name: part for part in processes(installation, environment(installation), listener, listener)}
        command = table["engine"].prepare()
        assert command.env is not None
        assert set(command.env) <= set(PLAIN_ENVIRONMENT)
        assert table["api"].prepare().env == environment(installation)


def test_a_second_holder_of_the_folder_is_refused_and_told_who_holds_it(installation: Installation) -> None:
    refused = pytest.raises(InUse, match=rf"is in use by another nylorun \(pid {os.getpid()}\)")
    with installation.lock(), refused, installation.lock():
        pass
    with installation.lock():
        assert (installation.folder / "up.lock").read_text() == str(os.getpid())


def test_two_folders_are_held_side_by_side(tmp_path: Path) -> None:
    with Installation(tmp_path / "a").lock(), Installation(tmp_path / "b").lock():
        assert (tmp_path / "a/up.lock").read_text() == (tmp_path / "b/up.lock").read_text()


def test_what_runs_is_published_for_others_and_taken_back(installation: Installation) -> None:
    with pytest.raises(InUse, match="starting or ending"):
        installation.published_environment()
    found = environment(installation)
    installation.publish_environment(found)
    assert installation.published_environment() == found
    assert stat.S_IMODE((installation.run / "environment.json").stat().st_mode) == 0o600
    installation.unpublish()
    with pytest.raises(InUse):
        installation.published_environment()


def test_the_connection_is_for_its_owner_alone(installation: Installation) -> None:
    installation.publish_connection("http://127.0.0.1:1", "old key")
    installation.publish_connection("http://127.0.0.1:2", "key")
    assert json.loads(installation.connection.read_text()) == {
        "url": "http://127.0.0.1:2",
        "applicationKey": "key",
        "pid": os.getpid(),
    }
    assert stat.S_IMODE(installation.connection.stat().st_mode) == 0o600


def test_a_failing_management_command_is_told_with_what_it_said() -> None:
    with pytest.raises(CommandFailed, match=r"(?s)nonsense failed \(exit code 1\).*Unknown command"):
        run_management(["nonsense"], {**os.environ, "DJANGO_SETTINGS_MODULE": ""})
