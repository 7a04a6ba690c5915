"""The way out of a virtual workspace: the real Engine, the real gate, real servers behind it."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from environments.compute.engine import wire
from environments.compute.virtual import control
from environments.compute.virtual.exits import MOST_OF_A_CALL, Exits, without_token
from tests.compute.virtual.outside import Out
from tests.compute.virtual.support import Server, background, eventually
from tests.compute.virtual.test_limits import on_disk
from tests.gate.sites import Site
from tests.gate.support import HOST, OTHER, PASS, TOKEN
from vault.gate.doorkeeper import Whose

MIB = 1 << 20
VALUE = "s3cret"


# ------------------------------------------------------------------------------------------------ who gets where


def test_the_secret_is_on_the_wire_and_not_in_the_workspace(out: Out, bound: Site, other: Site) -> None:
    """E-265: the gate sets the header of a bound host; what passes through is untouched."""
    said = out.sh(f"curl -sS -i -H 'Authorization: mine' https://{HOST}/ok; curl -sS https://{OTHER}/ok; env; set")
    assert bound.last.all("Authorization") == [f"Bearer {VALUE}"]
    assert other.last.all("Authorization") == []
    assert said.startswith("HTTP/1.1 200 OK\r\n")
    assert VALUE not in said
    assert TOKEN not in said


def test_a_call_without_a_way_out_says_that_there_is_no_network(out: Out, bound: Site) -> None:
    """Also in the process that just served a call with one."""
    out.sh(f"curl -sS https://{HOST}/ok")
    for program in ("curl", "wget"):
        output = out.workspace.bash(f"{program} https://{HOST}/ok")
        assert (output["exitCode"], output["stderr"]) == (6, f"{program}: this workspace has no network\n")
    assert len(bound.seen) == 1


def test_what_the_gate_refuses_is_told_in_its_words(out: Out, bound: Site) -> None:
    """E-197: a host that is not allowed, a literal address, another port, one that is not public."""
    out.world.internet.names["inside.example.org"] = [["127.0.0.1"]]
    for url in ("https://example.com/", "https://10.0.0.1/", f"https://{HOST}:8443/", "https://inside.example.org/"):
        output = out.bash(f"curl -sS {url}")
        assert output["exitCode"] == 56
        assert str(output["stderr"]).startswith("curl: (56) CONNECT tunnel failed, response 403: ")
    out.world.run(out.world.gate.stop())
    assert [reason for *_, reason, _ in out.world.rows.refusals()] == ["not_allowed", "address", "port", "not_public"]
    assert bound.seen == []


def test_each_workspace_shows_its_own_token(server: Server, out: Out, bound: Site) -> None:
    """E-265: side by side, through one Engine, each uses the Secrets of its own Environment and of no other."""
    rows = out.world.rows
    second = replace(PASS, whose=Whose("second", UUID(int=2)))
    rows.passes["token-of-second"] = second
    neighbour = Out(server.workspace(), out.world, ExitStack())
    with background(lambda: out.sh(f"for i in 1 2 3 4 5 6 7 8; do curl -sS https://{HOST}/first; done")):
        for _ in range(8):
            assert neighbour.bash(f"curl -sS https://{HOST}/second", token="token-of-second")["exitCode"] == 0
            assert neighbour.workspace.bash(f"curl -sS https://{HOST}/none")["exitCode"] == 6
    assert len([one for one, _ in rows.uses if one == second]) == 8
    assert len([one for one, _ in rows.uses if one == PASS]) == 8
    assert neighbour.bash(f"curl -sS https://{HOST}/", token="of-nobody")["exitCode"] == 56


def test_the_token_is_nowhere_in_the_process_that_runs_commands(server: Server, out: Out, bound: Site) -> None:
    """Not in its environment, its arguments or its memory, while it uses the way out; the server's memory has it."""
    if os.geteuid() != 0:
        pytest.skip("only root reads the memory of these processes")
    assert server.process is not None
    with background(lambda: out.sh(f"curl -sS https://{HOST}/wait", timeout_ms=100_000)) as outcome:
        eventually(lambda: bound.seen)
        _, *workers = server.descendants()
        assert workers
        for pid in workers:
            assert not _holds(pid, TOKEN)
            assert TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            assert TOKEN.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert any(_holds(pid, f"https://{HOST}/wait") for pid in workers), "this way of looking finds things"
        assert _holds(server.process.pid, TOKEN)
        bound.release.set()
    assert outcome == ["waited"]


def _holds(pid: int, text: str) -> bool:
    """Whether a process has ``text`` in memory that it can write."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            first, last, rights = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line).groups()  # type: ignore[union-attr]
            if "rw" not in rights:
                continue
            with suppress(OSError, ValueError):
                memory.seek(int(first, 16))
                if text.encode() in memory.read(int(last, 16) - int(first, 16)):
                    return True
    return False


def test_a_process_gets_the_certificates_and_not_the_token() -> None:
    header = wire.parse_header(
        wire.encode_header(
            "bash", {"command": "true"}, call="c", epoch=3, workspace="w", limits={"memoryMib": 64},
            egress={"gate": "http://127.0.0.1:1", "token": TOKEN, "trusted": "PEM"},
        )[wire.HEAD :]
    )  # fmt: skip
    assert json.loads(without_token(header, b"raw")) == {
        "v": 1, "op": "bash", "call": "c", "epoch": 3, "args": {"command": "true"}, "workspace": "w",
        "limits": {"memoryMib": 64}, "egress": {"trusted": "PEM"},
    }  # fmt: skip


def test_a_call_has_sixteen_connections_at_once_and_none_after_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gate:
        url = f"http://127.0.0.1:{gate.getsockname()[1]}"
        egress = {"gate": url, "token": "t", "trusted": ""}
        way_out = Exits().of(wire.Header("bash", "c", 0, {}, None, {}, egress))
        assert way_out is not None
        process = way_out.theirs.dup()
        kept = []
        for _ in range(MOST_OF_A_CALL):
            kept += _asked(process, way_out.answer)
        assert len(kept) == MOST_OF_A_CALL
        assert _asked(process, way_out.answer) == []
        kept.pop().close()
        eventually(lambda: way_out.serving < MOST_OF_A_CALL)
        kept += _asked(process, way_out.answer)
        kept[0].sendall(b"CONNECT a:443 HTTP/1.1\r\n\r\n")
        led, _ = gate.accept()
        assert b"Proxy-Authorization: Bearer t\r\n" in led.recv(4096)
        way_out.close()
        assert [one.recv(1) for one in (process, *kept)] == [b""] * (1 + MOST_OF_A_CALL)
        with pytest.raises(ConnectionResetError):
            led.recv(1)
        for one in (led, process, *kept):
            one.close()


def _asked(process: socket.socket, answer: Callable[[], bool]) -> list[socket.socket]:
    process.send(control.CONNECTION)
    assert answer()
    _, handles, _, _ = socket.recv_fds(process, 16, 1)
    return [socket.socket(fileno=handle) for handle in handles]


# ------------------------------------------------------------------------------------------------ ends and limits


def test_a_cancel_ends_a_transfer_that_hangs(server: Server, out: Out, other: Site) -> None:
    """Within a moment, tunnel included; the process goes on to serve."""
    cancel = threading.Event()
    with background(
        lambda: out.workspace.try_bash(f"curl -sS https://{OTHER}/wait", egress=out.egress(), cancel=cancel)
    ) as outcome:
        eventually(lambda: other.seen)
        before = server.descendants()
        cancel.set()
    assert outcome[0].code == "tool.cancelled"
    eventually(lambda: out.world.gate.tunnels == 0)
    assert out.sh("echo on") == "on\n"
    assert set(server.descendants()) >= set(before)


def test_the_time_limit_ends_a_transfer_that_hangs(out: Out, other: Site) -> None:
    output = out.bash(f"echo begun; curl -sS https://{OTHER}/wait", timeout_ms=700)
    assert (output["exitCode"], output["stdout"], output["timedOut"]) == (124, "begun\n", True)
    assert int(str(output["durationMs"])) < 2000
    eventually(lambda: out.world.gate.tunnels == 0)


def test_max_time_is_for_the_whole_transfer(out: Out, other: Site) -> None:
    output = out.bash(f"curl -sS -m 0.3 https://{OTHER}/wait; echo $?")
    assert (output["stdout"], output["stderr"]) == ("28\n", "curl: (28) Operation timed out\n")


@pytest.mark.parametrize("path", ["large", "large_chunked"])
def test_a_large_body_passes_through_little_memory(server: Server, out: Out, other: Site, path: str) -> None:
    """100 MiB through a process that may hold 64 MiB, to a file and to nowhere."""
    out.workspace.limits.update(memoryMib=64, diskBytes=256 * MIB)
    assert out.sh(f"curl -sS -o big -w '%{{size_download}}' https://{OTHER}/{path}") == str(100 * MIB)
    assert (server.root / out.workspace.uid / "workspace" / "big").stat().st_size == 100 * MIB
    assert out.sh(f"curl -sS -o /dev/null -w '%{{size_download}}' https://{OTHER}/{path}") == str(100 * MIB)


def test_what_is_printed_is_bounded(out: Out, other: Site) -> None:
    out.workspace.limits.update(memoryMib=64)
    output = out.bash(f"curl -sS https://{OTHER}/large | wc -c; curl -sS https://{OTHER}/large > f; echo $?; wc -c < f")
    assert str(output["stdout"]).split() == [str(8 * MIB), "23", str(8 * MIB)]
    assert "more than 8 MiB; write to a file with -o FILE or -O" in str(output["stderr"])


def test_a_download_beyond_the_disk_limit_fails_as_on_a_full_disk(server: Server, out: Out, other: Site) -> None:
    out.workspace.limits.update(diskBytes=16 * MIB)
    output = out.bash(f"curl -sS -o big https://{OTHER}/large; echo $?; rm -f big; echo room > small; cat small")
    assert str(output["stdout"]).split() == ["23", "room"]
    assert "File too large" in str(output["stderr"])
    assert on_disk(server, out.workspace) < 16 * MIB


# ------------------------------------------------------------------------------------------------ files


def test_no_download_is_written_and_no_upload_read_through_a_link_that_leads_out(
    server: Server, out: Out, other: Site
) -> None:
    victim = server.workspace()
    victim.write("secret", b"content")
    inside = server.root / out.workspace.uid / "workspace"
    out.sh("mkdir d")
    (inside / "up").symlink_to(f"../../{victim.uid}/workspace")
    (inside / "file").symlink_to(f"../../{victim.uid}/workspace/secret")
    for command in ("-o up/new", "-o file", "-d @file", "-d @up/secret", "-T file", "-D up/h", "-o ../../x/secret"):
        output = out.bash(f"cd d; curl -sS {command.replace('@', '@../').replace('-o ', '-o ../')} https://{OTHER}/ok")
        assert output["exitCode"] in (23, 26), (command, output)
    assert victim.bash("ls; cat secret")["stdout"] == "secret\ncontent"
    assert b"content" not in [seen.body for seen in other.seen]


def test_bytes_that_are_no_text_go_through_files(out: Out, other: Site) -> None:
    """Nothing is changed on its way unnoticed: what the interpreter cannot carry is an error."""
    out.workspace.write("raw", b"a\xff\x00b")
    said = out.sh(f"curl -sS --data-binary @raw https://{OTHER}/ok")
    assert other.last.body == b"a\xff\x00b"
    assert said.startswith("4 ")
    output = out.bash(f"cat raw | curl -sS --data-binary @- https://{OTHER}/ok")
    assert output["exitCode"] == 26
    assert "put it into a file" in str(output["stderr"])


def test_files_outside_the_workspace_are_the_interpreters(out: Out, other: Site) -> None:
    said = out.sh(
        f"echo -n sent > /tmp/in; curl -sS -d @/tmp/in -o /tmp/out https://{OTHER}/ok; cat /tmp/out; cd /tmp;"
        f"curl -sS -O https://{OTHER}/named/ok; cat /tmp/ok | cut -c1"
    )
    assert said.startswith("4 ")
    assert said.endswith("0\n")
