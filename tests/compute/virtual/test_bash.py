"""The bash tool of the virtual Engine, through its socket."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from tests.compute.virtual.support import Workspace, background, eventually

MIB = 1 << 20


def test_output_error_and_exit_code(workspace: Workspace) -> None:
    output = workspace.bash("echo out; echo err >&2; exit 7")
    assert {name: output[name] for name in ("exitCode", "stdout", "stderr", "truncated", "timedOut")} == {
        "exitCode": 7, "stdout": "out\n", "stderr": "err\n", "truncated": False, "timedOut": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("true", 0),
        ("false", 1),
        ("nosuchprogram", 127),
        ("if", 2),
        ("kill -TERM $$", 143),
        ("kill -9 $$", 137),
        ("exit 300", 44),
    ],
)
def test_exit_codes_are_those_of_bash(workspace: Workspace, command: str, exit_code: int) -> None:
    assert workspace.bash(command)["exitCode"] == exit_code


def test_stdin_env_and_cwd(workspace: Workspace) -> None:
    workspace.write("app/x", b"1")
    output = workspace.bash(
        "read first; echo $first; cat; echo $A; pwd; ls",
        stdin=b"one\ntwo\nthree",
        env={"A": 'it\'s "q" $HOME\nnext'},
        cwd="/workspace/app",
    )
    assert output["stdout"] == "one\ntwo\nthree" + 'it\'s "q" $HOME next\n' + "/workspace/app\nx\n"


@pytest.mark.parametrize(
    ("cwd", "code"), [("none", "tool.not_found"), ("file", "tool.not_directory"), ("/etc", "tool.path_escape")]
)
def test_a_wrong_cwd_fails_the_call(workspace: Workspace, cwd: str, code: str) -> None:
    workspace.write("file", b"1")
    assert workspace.try_bash("echo x > ran", cwd=cwd).code == code
    assert workspace.call("stat", {"path": "ran"}).code == "tool.not_found"


def test_nothing_but_files_stays_between_calls(workspace: Workspace) -> None:
    workspace.bash(
        "x=1; export Y=2; f() { echo f; }; alias g='echo g'; cd /tmp; echo left > left; echo kept > /workspace/kept",
        env={"SECRET_OF_ONE_CALL": "value"},
        stdin=b"typed",
    )
    output = workspace.bash("echo [$x$Y$SECRET_OF_ONE_CALL]; pwd; f; g; cat /tmp/left; env; ls -a /dev; cat kept")
    assert output["stdout"].startswith("[]\n/workspace\n")
    assert "value" not in output["stdout"]
    assert ".input" not in output["stdout"]
    assert output["stdout"].endswith("kept\n")
    assert output["stderr"].count("not found") == 2


@pytest.mark.parametrize(
    "command",
    ["while :; do :; done", "sleep 60", "jq -n 'last(range(1e12))'", "sleep 60 & sleep 60", "trap '' TERM; sleep 60"],
)
def test_a_time_out_ends_whatever_runs(workspace: Workspace, command: str) -> None:
    """E-302: exit code 124, ``timedOut``, the last line says so, and the next command works."""
    started = time.monotonic()
    output = workspace.bash(f"echo before; {command}", timeout_ms=300)
    assert time.monotonic() - started < 3
    assert (output["exitCode"], output["timedOut"], output["stdout"]) == (124, True, "before\n")
    assert output["stderr"] == "nylorun: timed out after 300 ms\n"
    assert workspace.bash("echo works")["stdout"] == "works\n"


def test_the_last_mebibyte_of_each_stream_is_kept(workspace: Workspace) -> None:
    workspace.write("big", b"x" * (3 * MIB) + b"end")
    output = workspace.bash("cat big; cat big >&2; echo tail >&2")
    assert output["truncated"] is True
    assert (len(output["stdout"]), output["stdout"][-3:]) == (MIB, "end")
    assert (len(output["stderr"]), output["stderr"][-8:]) == (MIB, "endtail\n")


def test_bytes_that_are_no_text_become_replacement_characters_and_stay_whole_in_files(workspace: Workspace) -> None:
    content = bytes(range(256))
    workspace.write("raw", content)
    output = workspace.bash("cat raw; cat raw | cat > copy; head -c 3 raw > three; printf 'é漢😀'")
    assert output["stdout"] == content.decode("utf-8", "replace") + "é漢😀"
    got = bytearray()
    workspace.call("read", {"path": "copy", "limit": None}, on_data=got.extend)
    assert got == content


def test_output_streams_while_the_command_runs(workspace: Workspace) -> None:
    """E-236: the first line arrives long before the end."""
    arrived: list[tuple[float, str]] = []
    output = workspace.bash(
        "echo first; sleep 0.4; echo second; echo oops >&2",
        on_stdout=lambda text: arrived.append((time.monotonic(), text)),
        on_stderr=lambda text: arrived.append((time.monotonic(), text)),
    )
    assert [text for _, text in arrived] == ["first\n", "second\n", "oops\n"]
    assert arrived[1][0] - arrived[0][0] > 0.3
    assert (output["stdout"], output["stderr"]) == ("first\nsecond\n", "oops\n")


def test_a_cancelled_call_stops(workspace: Workspace) -> None:
    cancel = threading.Event()
    with background(lambda: workspace.try_bash("echo $$ > begun; sleep 30; echo x > after", cancel=cancel)) as outcome:
        eventually(lambda: workspace.call("stat", {"path": "begun"}).kind == "completed")
        cancel.set()
    assert outcome[0].code == "tool.cancelled"
    assert workspace.call("stat", {"path": "after"}).code == "tool.not_found"


def test_kill_ends_a_call_by_its_id(workspace: Workspace) -> None:
    number = f"call-{uuid.uuid4()}"
    with background(lambda: workspace.try_bash("jq -n 'last(range(1e12))'", call_id=number)) as outcome:
        eventually(lambda: workspace.call("kill", {"call": number}).output == {"killed": True})
    assert outcome[0].code == "tool.cancelled"
    eventually(lambda: workspace.call("kill", {"call": number}).output == {"killed": False})


def test_a_client_that_leaves_ends_its_command(workspace: Workspace) -> None:
    class Left(Exception):
        pass

    def leave(_: str) -> None:
        raise Left

    with pytest.raises(Left):
        workspace.bash("echo go; while :; do echo $RANDOM > beat; done", on_stdout=leave, timeout_ms=60_000)
    assert eventually(lambda: _is_quiet(workspace))


def _is_quiet(workspace: Workspace) -> bool:
    def beat() -> object:
        answer = workspace.call("stat", {"path": "beat"})
        return answer.output["modifiedAt"] if answer.output else None

    before = beat()
    workspace.bash("sleep 0.2")
    return beat() == before


def test_calls_of_one_workspace_run_side_by_side(workspace: Workspace) -> None:
    with background(lambda: workspace.bash("while [ ! -e go ]; do sleep 0.02; done; echo met")) as outcome:
        workspace.bash("echo > go")
    assert outcome[0]["stdout"] == "met\n"


def test_a_command_of_64_kib_and_many_variables_arrive_whole(workspace: Workspace) -> None:
    command = "echo ${#V0} ${#V63}; : " + "x" * 65_000
    output = workspace.bash(command, env={f"V{number}": "y" * 4096 for number in range(64)})
    assert output["stdout"] == "4096 4096\n"
