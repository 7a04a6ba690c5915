"""Raw files of a workspace over HTTP, through the real virtual Engine: bytes, ranges, lists, and what leads out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from environments.compute.fake import FakeDriver
from environments.models import Effect, Environment
from nylorun.tenant.models import TenantSetting
from tests.compute.virtual.support import Server
from tests.support.client import Api
from tests.support.engines import scripted_engine
from tests.support.platform import eventually

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/v1/environments/demo"
FILES = f"{URL}/files"
BASH = f"{URL}/tools/bash"


@pytest.fixture
def demo(served: Api) -> Api:
    """An Environment of kind virtual."""
    assert served.put(URL, {}).status == 201
    return served


def bash(api: Api, command: str, **more: Any) -> dict[str, Any]:
    answer = api.post(BASH, {"command": command, **more}).json
    assert answer["kind"] == "completed", answer
    return dict(answer["output"])


def test_bytes_go_in_and_come_out_exactly(demo: Api) -> None:
    """E-237: made 201, replaced 200; content, length, time and media type of what was stored."""
    content = bytes(range(256)) * 1000
    made = demo.put(f"{FILES}/in/report.pdf", content)
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    assert (made.status, made.json) == (
        201, {"path": "in/report.pdf", "size": len(content), "sha256": digest, "created": True},
    )  # fmt: skip
    assert demo.put(f"{FILES}/in/report.pdf", content).status == 200
    read = demo.get(f"{FILES}/in/report.pdf")
    assert (read.status, read.body == content) == (200, True)
    assert read.headers["Content-Length"] == str(len(content))
    assert read.headers["Content-Type"] == "application/pdf"
    assert "Last-Modified" in read.headers
    assert Effect.objects.count() == 0


def test_stored_content_never_runs_as_a_page_of_this_server(demo: Api) -> None:
    """E-292: attachment, nosniff, sandbox."""
    demo.put(f"{FILES}/page.html", b"<script>alert(1)</script>")
    headers = demo.get(f"{FILES}/page.html").headers
    assert headers["Content-Disposition"].startswith("attachment")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "sandbox; default-src 'none'"


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=4-", 206, b"456789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=8-100", 206, b"89"),
        ("bytes=10-", 416, None),
        ("lines=1-2", 200, b"0123456789"),
    ],
)
def test_one_range(demo: Api, asked: str, status: int, body: bytes | None) -> None:
    """E-237: 206 with its part, 416 with the size."""
    demo.put(f"{FILES}/digits", b"0123456789")
    answer = demo.get(f"{FILES}/digits", Range=asked)
    assert answer.status == status
    if body is None:
        assert (answer.json["code"], answer.json["details"]) == ("range_not_satisfiable", {"size": 10})
    else:
        assert answer.body == body


def test_head_is_get_without_a_body(demo: Api) -> None:
    """E-237."""
    demo.put(f"{FILES}/a", b"12345")
    answer = demo.head(f"{FILES}/a")
    assert (answer.status, answer.headers["Content-Length"], answer.body) == (200, "5", b"")
    assert demo.head(f"{FILES}/missing").status == 404


def test_an_empty_file_and_one_without_a_parent(demo: Api) -> None:
    """E-237: parents is 1 unless sent as 0."""
    assert demo.put(f"{FILES}/empty", b"").json["size"] == 0
    assert demo.get(f"{FILES}/empty").body == b""
    assert demo.put(f"{FILES}/no/such/a?parents=0", b"x").status == 404
    assert demo.get(f"{FILES}?list=1").json["entries"][0]["path"] == "empty"


def test_folders_are_listed_and_not_read(demo: Api) -> None:
    """E-237: 400 without list=1; recursive lists below."""
    demo.put(f"{FILES}/d/e/f", b"x")
    assert demo.get(f"{FILES}/d").status == 400
    assert demo.get(FILES).status == 400
    assert [entry["path"] for entry in demo.get(f"{FILES}/d?list=1").json["entries"]] == ["d/e"]
    deep = demo.get(f"{FILES}?list=1&recursive=1").json
    assert ([entry["path"] for entry in deep["entries"]], deep["truncated"]) == (["d", "d/e", "d/e/f"], False)


def test_delete_says_what_it_did(demo: Api) -> None:
    """E-237: missing is false; a folder that is not empty needs recursive."""
    demo.put(f"{FILES}/d/a", b"x")
    assert demo.delete(f"{FILES}/d").status == 409
    assert demo.delete(f"{FILES}/d?recursive=1").json == {"path": "d", "deleted": True}
    assert demo.delete(f"{FILES}/d").json == {"path": "d", "deleted": False}


@pytest.mark.parametrize(
    "path", ["..%2Fa", "%2e%2e/a", "a/../b", "a//b", "a%00b", "a%2Fb", ".", "..", "a/./b", "%ff", "%zz"]
)
def test_a_path_that_leads_out_is_refused_before_anything_runs(demo: Api, path: str) -> None:
    """E-237, pain 25: encoded slashes, dots and NUL are 400 on every verb."""
    assert demo.get(f"{FILES}/{path}").status == 400
    assert demo.put(f"{FILES}/{path}", b"x").status == 400
    assert demo.delete(f"{FILES}/{path}").status == 400
    assert Environment.objects.get(pk="demo").workspace_at is None


def test_a_link_that_leads_out_is_refused_and_one_inside_is_followed(demo: Api, engine: Server) -> None:
    """E-237: links are followed below the workspace only."""
    demo.put(f"{FILES}/a.txt", b"inside")
    uid = str(Environment.objects.get(pk="demo").uid)
    folder = engine.root / uid / "workspace"
    (folder / "in").symlink_to("a.txt")
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("../../..")
    assert demo.get(f"{FILES}/in").body == b"inside"
    for name in ("out", "up/etc", "up"):
        for answer in (demo.get(f"{FILES}/{name}"), demo.put(f"{FILES}/{name}/x", b"x")):
            assert answer.status in (400, 404)
    assert Path("/etc/passwd").exists()


def test_a_body_over_the_tenants_limit_is_413_and_nothing_is_written(demo: Api, clock: Any) -> None:
    """E-237: stated or not, the length is bounded while it is read."""
    TenantSetting.objects.create(
        name="artifacts.limits", value={"fileBytes": 1000}, updated_at="2030-01-01T00:00:00Z", updated_by="op"
    )
    answer = demo.put(f"{FILES}/big", b"x" * 1001)
    assert (answer.status, answer.json["code"]) == (413, "limit_exceeded")
    assert answer.json["details"]["limitBytes"] == 1000
    assert demo.get(f"{FILES}?list=1").json["entries"] == []
    assert demo.put(f"{FILES}/fits", b"x" * 1000).status == 201


def test_a_file_that_the_workspace_has_no_room_for_is_413_with_the_disks_limit(demo: Api) -> None:
    """E-237, E-01: `limits.diskBytes` of the Tenant is what a virtual workspace holds."""
    assert demo.put("/v1/tenant/sandbox", {"limits": {"diskBytes": "1MiB"}}).status == 200
    answer = demo.put(f"{FILES}/big", b"x" * (2 << 20))
    assert (answer.status, answer.json["code"]) == (413, "limit_exceeded")
    assert answer.json["details"] == {"limit": "disk", "limitBytes": 1 << 20}
    assert demo.get(f"{FILES}?list=1").json["entries"] == []


@pytest.mark.parametrize(
    ("code", "file_bytes", "details"),
    [
        ("tool.no_space", 1000, {"limit": "disk", "limitBytes": 2 << 30}),
        ("tool.too_large", 1000, {"limit": "fileBytes", "limitBytes": 1000}),
        ("tool.too_large", 4 << 30, {"limit": "disk", "limitBytes": 2 << 30}),
    ],
)
def test_what_a_pod_has_no_room_for_is_413_with_the_limit_it_met(
    api: Api, pods: FakeDriver, clock: Any, code: str, file_bytes: int, details: dict[str, Any]
) -> None:
    """E-237: the storage of its Recipe, or the Tenant's limit on one file, whichever is the smaller."""
    TenantSetting.objects.create(
        name="artifacts.limits", value={"fileBytes": file_bytes}, updated_at="2030-01-01T00:00:00Z", updated_by="op"
    )
    assert api.put(URL, {"kind": "pod", "storage": "2GiB"}).status == 201
    full = {"kind": "failed", "code": code, "message": "/workspace/f does not fit."}
    with scripted_engine(lambda header, body: dict(full)) as engine:
        Environment.objects.filter(pk="demo").update(
            desired="running", observed="running", engine_address=engine.address, host_epoch=1
        )
        answer = api.put(f"{FILES}/f", b"x")
    assert (answer.status, answer.json["code"]) == (413, "limit_exceeded")
    assert answer.json["message"] == full["message"]
    assert answer.json["details"] == details


def test_names_in_any_script_come_back(demo: Api) -> None:
    """Unicode names and spaces, percent-encoded, are one name on every side."""
    demo.put(f"{FILES}/%C3%A4%20%E4%BD%A0.txt", b"x")
    assert demo.get(f"{FILES}?list=1").json["entries"][0]["path"] == "ä 你.txt"
    assert bash(demo, "cat 'ä 你.txt'")["stdout"] == "x"


def test_bash_streams_what_it_prints_and_ends_with_exit(demo: Api) -> None:
    """E-236: ids from 0; the last frame is exit with the whole answer."""
    answer = demo.post(BASH, {"command": "echo one; echo two >&2; exit 3"}, Accept="text/event-stream")
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    frames = [frame for frame in answer.body.decode().split("\n\n") if frame and not frame.startswith(":")]
    ids = [frame.splitlines()[0] for frame in frames]
    assert ids == [f"id: {number}" for number in range(len(frames))]
    last = json.loads(frames[-1].splitlines()[2].removeprefix("data: "))
    assert frames[-1].splitlines()[1] == "event: exit"
    assert (last["output"]["exitCode"], last["output"]["stdout"], last["output"]["stderr"]) == (3, "one\n", "two\n")


def test_a_refusal_before_the_stream_is_an_ordinary_error(demo: Api) -> None:
    """E-236."""
    demo.put("/v1/environments/none", {"kind": "none"})
    answer = demo.post("/v1/environments/none/tools/bash", {"command": "true"}, Accept="text/event-stream")
    assert (answer.status, answer.json["code"]) == (409, "environment_unavailable")


@pytest.mark.parametrize(("query", "finished"), [("", True), ("?onDisconnect=kill", False)])
def test_a_client_that_leaves_ends_its_command_only_when_it_asked_so(demo: Api, query: str, finished: bool) -> None:
    """E-236, pain 11."""
    command = "echo begun; sleep 1; echo done > done.txt"
    stream = demo.post(f"{BASH}{query}", {"command": command}, Accept="text/event-stream")
    pieces = stream.chunks()
    assert next(pieces).startswith(b":")
    assert b"begun" in next(pieces)
    stream.close()
    eventually(lambda: Effect.objects.count() == 0, what="the call is over")
    names = [entry["path"] for entry in demo.get(f"{FILES}?list=1").json["entries"]]
    assert ("done.txt" in names) == finished


def test_a_command_out_of_time_keeps_its_output(demo: Api) -> None:
    """E-302, pain 37: exit code 124, the line that says so, and the next command works."""
    output = bash(demo, "echo before; sleep 30", timeoutMs=300)
    assert (output["exitCode"], output["timedOut"], output["stdout"]) == (124, True, "before\n")
    assert output["stderr"].endswith("nylorun: timed out after 300 ms\n")
    assert bash(demo, "echo next")["stdout"] == "next\n"


def test_seven_tools(demo: Api) -> None:
    """E-235: inputs and outputs as the examples of the interface show them."""
    tool = lambda name, body: demo.post(f"{URL}/tools/{name}", body).json  # noqa: E731
    written = tool("write", {"path": "a.txt", "content": "hello", "mode": "0600", "createParents": True})
    digest = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert written["output"] == {"path": "a.txt", "size": 5, "sha256": digest, "created": True}
    read = tool("read", {"path": "a.txt", "offset": 0, "limit": 1024})["output"]
    assert read == {
        "path": "a.txt", "size": 5, "offset": 0, "length": 5, "encoding": "utf-8", "content": "hello", "eof": True,
    }  # fmt: skip
    entry = tool("stat", {"path": "a.txt"})["output"]
    assert (entry["path"], entry["type"], entry["size"], entry["mode"]) == ("a.txt", "file", 5, "0600")
    assert tool("list", {"path": "."})["output"]["entries"] == [entry]
    assert tool("move", {"from": "a.txt", "to": "b.txt"})["output"] == {"from": "a.txt", "to": "b.txt"}
    assert tool("remove", {"path": "b.txt"})["output"] == {"path": "b.txt", "removed": 1}
    assert tool("remove", {"path": "b.txt"})["code"] == "tool.not_found"
    binary = tool("write", {"path": "x", "contentBase64": "/wA="})
    assert binary["output"]["size"] == 2
    assert tool("read", {"path": "x"})["output"]["encoding"] == "base64"
    assert tool("read", {"path": "../x"})["code"] == "tool.path_escape"
