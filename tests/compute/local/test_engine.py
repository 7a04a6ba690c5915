"""The pod Engine through its socket: commands, streams, ends of calls, epochs, and files."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from environments.compute.engine import wire
from environments.compute.local.driver import LocalDriver
from tests.compute.local.helpers import Client, Reply, drain, eventually

MIB = 1 << 20


def processes_named(pod: Client, text: str) -> str:
    """Processes inside whose command line holds ``text``; the asking shell hides it from itself."""
    hidden = f"[{text[0]}]{text[1:]}"
    return pod.bash(f"ps -eo pid,args | grep -- '{hidden}'; true").text.strip()


def test_a_command_answers_exit_code_output_and_counts(pod: Client) -> None:
    """E-30: `bash` runs in /workspace as the sandbox user and reports what it did."""
    reply = pod.bash("pwd; echo oops >&2; exit 3")
    assert reply.frames == [wire.ACCEPTED, wire.OUT, wire.ERR, wire.RESULT]
    assert (reply.out, reply.err) == (b"/workspace\n", b"oops\n")
    assert reply.output["exitCode"] == 3
    assert reply.output["timedOut"] is False
    assert (reply.output["stdoutBytes"], reply.output["stderrBytes"]) == (11, 5)


def test_environment_is_the_recipes_and_the_calls(pod: Client) -> None:
    assert pod.sh('echo "$FROM_RECIPE/$MINE"', env={"MINE": "ä"}) == "a b=c/ä"


def test_standard_input_arrives_whole_and_ends(pod: Client) -> None:
    data = os.urandom(MIB)
    assert pod.bash("sha256sum", data).text.split()[0] == hashlib.sha256(data).hexdigest()
    assert pod.sh("cat | wc -c") == "0"


def test_a_command_that_reads_no_input_is_not_held_up_by_it(pod: Client) -> None:
    assert pod.bash("exec 0<&-; echo done", b"x" * MIB).out == b"done\n"


def test_output_passes_byte_for_byte_and_keeps_the_last_mebibyte(pod: Client) -> None:
    every_byte = r"""python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)))'"""
    assert pod.bash(every_byte).out == bytes(range(256))
    reply = pod.bash("yes 0123456789 | head -c 3000000; printf THEEND")
    assert reply.output["stdoutBytes"] == 3_000_006
    assert len(reply.out) == MIB
    assert reply.out.endswith(b"THEEND")


def test_streamed_output_appears_while_the_command_runs(pod: Client) -> None:
    args = {"command": "echo first; read line; echo $line", "timeoutMs": 20_000, "stream": True}
    with pod.open("bash", args) as sock:
        assert wire.read_frame(sock) == (wire.ACCEPTED, b"")
        assert wire.read_frame(sock) == (wire.OUT, b"first\n")
        wire.write_frame(sock, wire.DATA, b"second\n")
        assert wire.read_frame(sock) == (wire.OUT, b"second\n")
        wire.write_frame(sock, wire.END)
        assert drain(sock).output["exitCode"] == 0


def test_a_client_that_does_not_read_holds_the_command_back(pod: Client, shared: tuple[LocalDriver, Path]) -> None:
    """Pain 11: output nobody reads fills no memory, and the time limit still holds."""
    args = {"command": "yes; echo $?", "timeoutMs": 700, "stream": True}
    with pod.open("bash", args) as sock:
        eventually(lambda: "yes" in processes_named(pod, "yes"))
        rss = int(pod.sh("awk '/VmRSS/{print $2}' /proc/1/status"))
        assert rss < 30_000
        eventually(lambda: not processes_named(pod, "yes"))
        reply = drain(sock)
    assert reply.output["timedOut"] is True


@pytest.mark.parametrize(
    "command",
    [
        "sleep 4321 & sleep 4321",
        "cat",
        "trap '' TERM; sleep 4321; sleep 4321",
        "(trap '' TERM; while :; do sleep 4321; done) & wait",
        "set -m; sleep 4321 & sleep 4321",
    ],
    ids=["background child", "reader of input", "ignores TERM", "child ignores TERM", "job control"],
)
def test_time_out_ends_the_whole_group_and_the_next_call_works(pod: Client, command: str) -> None:
    """Pain 37: the answer is 124 within the grace, and no child survives."""
    started = time.monotonic()
    args = {"command": command, "timeoutMs": 200, "stream": False}
    with pod.open("bash", args) as sock:  # input stays open
        reply = drain(sock)
    assert reply.output["timedOut"] is True
    assert reply.output["exitCode"] == 124
    assert time.monotonic() - started < 4
    eventually(lambda: not processes_named(pod, "sleep 4321"))
    assert pod.sh("echo next") == "next"


def test_a_background_child_neither_delays_the_answer_nor_dies_with_it(pod: Client) -> None:
    started = time.monotonic()
    assert pod.bash("sleep 1234 & echo started").out == b"started\n"
    assert time.monotonic() - started < 1.5
    assert processes_named(pod, "sleep 1234")
    pod.sh("pkill -f 'sleep 123[4]'")


def test_output_of_a_pipeline_that_outlives_the_shell_is_not_cut(pod: Client) -> None:
    assert pod.bash("echo late > >(sleep 0.1; cat)").out == b"late\n"


def test_a_signal_is_reported_as_128_and_its_number(pod: Client) -> None:
    assert pod.bash("kill -KILL $$").output["exitCode"] == 137
    assert pod.bash("kill -SEGV $$").output["exitCode"] == 139


def test_a_lost_connection_ends_the_group(pod: Client) -> None:
    """Lifecycle 7.4: a call lives as long as its connection."""
    sock = pod.open("bash", {"command": "trap '' TERM; sleep 5678 & sleep 5678", "timeoutMs": 60_000, "stream": True})
    assert wire.read_frame(sock) == (wire.ACCEPTED, b"")
    eventually(lambda: processes_named(pod, "sleep 5678"))
    sock.close()
    eventually(lambda: not processes_named(pod, "sleep 5678"), seconds=3)


@pytest.mark.parametrize("how", ["frame", "operation"])
def test_kill_cancels_a_command(pod: Client, how: str) -> None:
    args = {"command": "sleep 7777", "timeoutMs": 60_000, "stream": False}
    with pod.open("bash", args, call=f"victim-{how}") as sock:
        assert wire.read_frame(sock) == (wire.ACCEPTED, b"")
        if how == "frame":
            wire.write_frame(sock, wire.KILL)
        else:
            assert pod.call("kill", {"call": f"victim-{how}"}).output == {"killed": True}
        assert drain(sock).code == "tool.cancelled"
    eventually(lambda: not processes_named(pod, "sleep 7777"))
    assert pod.call("kill", {"call": f"victim-{how}"}).output == {"killed": False}


def test_kill_cancels_a_write_that_waits_for_its_body(pod: Client) -> None:
    with pod.open("write", {"path": "never"}, call="waiting") as sock:
        assert wire.read_frame(sock) == (wire.ACCEPTED, b"")
        assert pod.call("kill", {"call": "waiting"}).output == {"killed": True}
        assert drain(sock).code == "tool.cancelled"
    assert pod.call("stat", {"path": "never"}).code == "tool.not_found"


@pytest.mark.parametrize("epoch", [0, 2])
def test_another_epoch_is_refused_and_nothing_runs(pod: Client, epoch: int) -> None:
    """Lifecycle 7.4: a call meant for another pod never runs."""
    reply = pod.call("write", {"path": "wrong-epoch"}, b"x", epoch=epoch)
    assert reply.refusal is not None
    assert reply.refusal["reason"] == "epoch"
    assert not reply.accepted
    assert pod.call("stat", {"path": "wrong-epoch"}).code == "tool.not_found"
    assert pod.call("ping", {}, epoch=epoch).output == {"engine": "pod", "epoch": 1}


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("bash", {"command": "true"}),
        ("bash", {"command": 1, "timeoutMs": 1}),
        ("bash", {"command": "true", "timeoutMs": 0}),
        ("bash", {"command": "true", "timeoutMs": 3_600_001}),
        ("bash", {"command": "true", "timeoutMs": 10, "env": {"A=B": "c"}}),
        ("bash", {"command": "tr\0ue", "timeoutMs": 10}),
        ("read", {}),
        ("read", {"path": "a", "offset": -1}),
        ("write", {"path": "a", "mode": "4755"}),
        ("write", {"path": "a", "mode": "0888"}),
        ("list", {"path": ".", "recursive": "yes"}),
        ("format", {}),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(pod: Client, op: str, args: dict[str, object]) -> None:
    reply = pod.call(op, args)
    assert reply.refusal is not None
    assert reply.refusal["reason"] == "bad_request"


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"H\xff\xff\xff\xff", b"H\0\0\0\x05{", b"D\0\0\0\x01x", b""],
    ids=["http", "huge", "cut off", "body first", "nothing"],
)
def test_bytes_of_another_protocol_end_the_connection_and_nothing_else(pod: Client, garbage: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(pod.path)
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b""
    assert pod.sh("echo alive") == "alive"


def test_a_command_of_the_largest_size_runs(pod: Client) -> None:
    """Environments 9.3: 65 536 characters, which as UTF-8 exceed what the kernel takes as one argument."""
    command = "echo end #" + "\N{PILE OF POO}" * 65_526
    assert len(command) == 65_536
    assert pod.bash(command).out == b"end\n"


@pytest.mark.parametrize(
    ("cwd", "code"),
    [("missing", "tool.not_found"), ("../etc", "tool.path_escape"), ("file", "tool.not_directory")],
)
def test_a_folder_that_is_none_fails_the_call(pod: Client, cwd: str, code: str) -> None:
    pod.call("write", {"path": "file"}, b"")
    assert pod.bash("true", cwd=cwd).code == code


def test_commands_run_beside_each_other(pod: Client) -> None:
    barrier = "until [ -e both-$1 ]; do sleep 0.01; done"
    replies: list[Reply] = []

    def run(mine: int, other: int) -> None:
        replies.append(pod.bash(f"touch both-{mine}; set -- {other}; {barrier}; echo met"))

    threads = [threading.Thread(target=run, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [reply.out for reply in replies] == [b"met\n", b"met\n"]


def test_orphans_are_reaped(pod: Client) -> None:
    pod.sh("for i in 1 2 3 4 5; do (setsid sh -c 'exit 0' &) ; done")
    eventually(lambda: "defunct" not in pod.sh("ps -eo args"))


# ------------------------------------------------------------------------------------------------ files


def test_files_go_through_the_socket(pod: Client) -> None:
    """Environments 9.3: the outputs of the file tools, as on the wire."""
    data = os.urandom(700_000)
    written = pod.call("write", {"path": "dir/f.bin", "mode": "0640", "createParents": True}, data).output
    assert written == {
        "path": "dir/f.bin", "size": 700_000, "sha256": "sha256:" + hashlib.sha256(data).hexdigest(), "created": True,
    }  # fmt: skip
    read = pod.call("read", {"path": "/workspace/dir/f.bin", "offset": 5, "limit": 600_000})
    assert read.data == data[5:600_005]
    assert read.frames == [wire.ACCEPTED, wire.DATA, wire.DATA, wire.DATA, wire.RESULT]
    assert read.output["eof"] is False
    assert pod.sh("stat -c '%a %U' dir/f.bin") == "640 sandbox"
    assert [entry["path"] for entry in pod.call("list", {"path": "dir"}).output["entries"]] == ["dir/f.bin"]
    assert pod.call("stat", {"path": "dir/f.bin"}).output["mode"] == "0640"
    assert pod.call("move", {"from": "dir/f.bin", "to": "g"}).output == {"from": "dir/f.bin", "to": "g"}
    assert pod.call("remove", {"path": "g"}).output == {"path": "g", "removed": 1}


def test_a_write_over_its_limit_answers_and_leaves_nothing(pod: Client) -> None:
    reply = pod.call("write", {"path": "large", "maxBytes": 10}, b"x" * (8 * MIB))
    assert reply.code == "tool.too_large"
    assert pod.sh("ls -A | grep -c -e large -e nylorun || true") == "0"


def test_a_write_whose_client_leaves_changes_nothing(pod: Client) -> None:
    pod.call("write", {"path": "kept"}, b"old")
    with pod.open("write", {"path": "kept"}) as sock:
        wire.write_frame(sock, wire.DATA, b"new")
    eventually(lambda: pod.sh("ls -A | grep -c '^.nylorun' || true") == "0")
    assert pod.call("read", {"path": "kept"}).data == b"old"


def test_parallel_writers_make_one_new_folder(pod: Client) -> None:
    """Pain 12: 32 parallel writes into a folder that does not exist all succeed."""
    replies: list[Reply] = []
    start = threading.Barrier(32)

    def write(number: int) -> None:
        start.wait(20)
        replies.append(pod.call("write", {"path": f"a/b/c/f{number}", "createParents": True}, b"x"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [reply.output["created"] for reply in replies] == [True] * 32
    assert len(pod.call("list", {"path": "a/b/c"}).output["entries"]) == 32


def test_a_tree_deeper_than_a_path_is_listed_as_far_as_it_can_be_called(pod: Client) -> None:
    """E-235: what has too long a path is left out, and the answer says so."""
    pod.sh("mkdir deep; cd deep; for i in $(seq 40); do n=$(printf 'd%.0s' $(seq 200)); mkdir $n && cd $n; done")
    output = pod.call("list", {"path": "deep", "recursive": True}).output
    assert output["truncated"] is True
    assert 10 < len(output["entries"]) < 40
    assert max(len(entry["path"]) for entry in output["entries"]) <= 4096
    pod.sh("rm -r deep")


def test_a_file_is_there_once_it_is_whole_and_a_write_that_is_given_up_leaves_nothing(pod: Client) -> None:
    """E-237: commands beside it neither see nor open what has not come to its end."""
    folder = pod.sh("mktemp -d -p /workspace").removeprefix("/workspace/")
    with pod.open("write", {"path": f"{folder}/f", "mode": "0644"}) as sock:
        sock.sendall(wire.encode(wire.DATA, b"half"))
        assert wire.read_frame(sock) == (wire.ACCEPTED, b"")
        assert pod.sh(f"ls -A {folder}") == ""
        assert pod.bash(f"cat /proc/1/fd/* {folder}/*").out == b""
    assert pod.call("write", {"path": f"{folder}/f", "mode": "0644"}, b"whole").output["created"] is True
    assert pod.sh(f"ls -A {folder}; cat {folder}/f") == "f\nwhole"
