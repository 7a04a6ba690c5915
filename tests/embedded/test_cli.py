"""The `nylorun` command from outside: its usage, its refusals, and that it is a guest."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import nylorun
from nylorun.cli.main import main, parser
from nylorun.embedded.installation import Installation
from tests.embedded.support import ROOT, line_of, plain_environment, running


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-m", "nylorun", *arguments),
        cwd=ROOT,
        env=plain_environment() | settings,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_names_every_verb_and_the_version_is_printed() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert all(verb in shown.stdout for verb in ("up", "keys", "manage"))
    assert run("--version").stdout == f"nylorun {nylorun.__version__}\n"


@pytest.mark.parametrize("wrong", [[], ["dance"], ["up", "--port", "70000"], ["up", "--driver", "docker"], ["keys"]])
def test_wrong_usage_ends_with_2(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2


def test_up_has_sensible_defaults() -> None:
    arguments = parser().parse_args(["up"])
    assert (arguments.data_dir, arguments.port, arguments.driver) == (Path("data"), 8000, "local")


def test_manage_hands_everything_after_the_dashes_on() -> None:
    arguments = parser().parse_args(["manage", "--data-dir", "d", "--", "migrate", "--plan", "--data-dir", "x"])
    assert arguments.command == ["migrate", "--plan", "--data-dir", "x"]
    assert arguments.data_dir == Path("d")


def test_the_command_imports_neither_django_nor_what_it_runs() -> None:
    code = (
        "import sys, nylorun.cli.main\n"
        "rooms = {'django', 'celery', 'redis', 'psycopg', 'environments', 'manifests', 'vault', 'workers'}\n"
        "print(sorted(rooms & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    shown = subprocess.run((sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_a_second_up_on_the_folder_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "data")
    installation.connection.write_text("of the first")
    with installation.lock():
        second = run("up", "--data-dir", str(installation.folder), "--port", "0")
    assert second.returncode == 1
    assert second.stderr.startswith(f"nylorun: {installation.folder} is in use by another nylorun (pid {os.getpid()})")
    assert installation.connection.read_text() == "of the first"


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = run("up", "--data-dir", str(tmp_path / "data"), "--port", str(port))
    assert refused.returncode == 1
    assert refused.stderr == (
        f"nylorun: port {port} on 127.0.0.1: Address already in use; choose another with --port\n"
    )
    assert not (tmp_path / "data/postgres").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NYLORUN_SWEEP_SECONDS", "5m"),
        ("NYLORUN_POOL_SIZE", "0"),
        ("NYLORUN_API_THREADS", "abc"),
        ("NYLORUN_KEYRING", "file:/nowhere"),
        ("DATABASE_URL", "mysql://host/name"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it_and_nothing_starts(tmp_path: Path, name: str, value: str) -> None:
    folder = tmp_path / "data"
    refused = run("up", "--data-dir", str(folder), "--port", "0", **{name: value})
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"nylorun: {name}")
    assert len(refused.stderr.splitlines()) == 1
    assert not (folder / "postgres").exists()
    assert list((folder / "logs").iterdir()) == []


def test_the_demo_refuses_a_wrong_setting_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("NYLORUN_SWEEP_SECONDS", "never")
    assert main(["demo"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "nylorun: NYLORUN_SWEEP_SECONDS must be a number of seconds from 0.5 to 600; it is 'never'.\n"
    assert [path.name for path in tmp_path.iterdir()] == [".nylorun"]


@pytest.mark.parametrize("verb", [["keys", "list"], ["manage"]])
def test_keys_and_manage_refuse_a_wrong_setting_while_up_runs_and_when_it_does_not(
    tmp_path: Path, verb: list[str]
) -> None:
    installation = Installation(tmp_path / "data")
    arguments = [*verb, "--data-dir", str(installation.folder), *(["--", "check"] if verb == ["manage"] else [])]
    with installation.lock():
        addresses = {"DATABASE_URL": "postgresql://nowhere/n", "REDIS_URL": "redis://nowhere"}
        installation.publish_environment(addresses | {"SECRET_KEY": "of up", "NYLORUN_KEYRING": "of up"})
        while_it_runs = run(*arguments, NYLORUN_POOL_SIZE="many")
    otherwise = run(*arguments, NYLORUN_POOL_SIZE="many")
    for refused in (while_it_runs, otherwise):
        assert refused.returncode == 2
        assert refused.stderr == "nylorun: NYLORUN_POOL_SIZE must be a whole number from 2 to 500; it is 'many'.\n"


@pytest.mark.parametrize("verb", [["keys", "list"], ["keys", "create", "app"], ["manage"]])
def test_keys_and_manage_refuse_a_folder_that_is_none_of_ours_and_leave_it_alone(
    tmp_path: Path, verb: list[str]
) -> None:
    folder = tmp_path / "none"
    refused = run(*verb, "--data-dir", str(folder), *(["--", "check"] if verb == ["manage"] else []))
    assert refused.returncode == 1
    assert f"{folder} is no data folder of nylorun" in refused.stderr
    assert not folder.exists()


def test_a_signal_during_the_start_ends_it_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    argv = ("-m", "nylorun", "up", "--data-dir", str(folder), "--port", "0", "--driver", "fake")
    with running(sys.executable, *argv) as up:
        assert " ready (pid" in line_of(up)
        up.send_signal(signal.SIGTERM)
        lines = [line[9:].split() for line in up.communicate(timeout=30)[0].splitlines()]
    assert up.returncode == 0
    assert [line[0] for line in lines if "ended" in line][-1] == "postgres"
    assert not (folder / "connection.json").exists()
    assert list((folder / "run").glob("*.pid")) == []
