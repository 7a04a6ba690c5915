"""Tool calls outside a Session: the journal around them, refusals, and what an Engine may do wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from environments.api import tools as tool_views
from environments.commands import CallTool
from environments.compute.fake import FakeDriver
from environments.models import Effect, Environment
from environments.services import calls
from nylorun import config
from nylorun.db.tx import database_now
from tests.factories import FAKE_PODS
from tests.support.client import Api
from tests.support.engines import ScriptedEngine, scripted_engine

URL = "/v1/environments/demo"
BASH = f"{URL}/tools/bash"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEngine]:
    """The virtual Engine of this installation, scripted."""
    with scripted_engine() as scripted:
        real = config.current()
        moved = type("Moved", (), {name: getattr(real, name) for name in real.__slots__})()
        moved.virtual_engine = scripted.address
        moved.start_wait_seconds = 0.3
        monkeypatch.setattr(config, "current", lambda: moved)
        yield scripted


def busy(id: str = "demo") -> Effect:
    """A call that runs somewhere else."""
    row = Environment.objects.get(pk=id)
    now = database_now()
    return Effect.objects.create(
        id="ef_x", environment_id=id, uid=row.uid, tool="bash", hash="", status="invoking",
        lease_until=now + timedelta(seconds=30), started_at=now,
    )  # fmt: skip


def test_a_call_answers_what_the_tool_did(api: Api, engine: ScriptedEngine) -> None:
    """E-202, E-234: completed with output; the Effect is gone with the call; use is recorded."""
    api.put(URL, {})
    answer = api.post(BASH, {"command": "echo hi"})
    assert answer.json["kind"] == "completed"
    assert answer.json["output"]["stdout"] == "echo hi"
    assert Effect.objects.count() == 0
    row = Environment.objects.get(pk="demo")
    assert row.workspace_at is not None
    assert row.last_used_at == row.last_active_at
    assert api.get(URL).json["state"] == "running"
    (header,) = engine.calls
    assert (header["workspace"], header["limits"]["memoryMib"]) == (str(row.uid), 1024)


def test_a_failed_tool_is_a_served_call(api: Api, engine: ScriptedEngine) -> None:
    """E-202: HTTP 200 with kind failed and a code."""
    api.put(URL, {})
    engine.script = lambda header, body: {"kind": "failed", "code": "tool.not_found", "message": "no"}
    answer = api.post(f"{URL}/tools/stat", {"path": "a"})
    assert (answer.status, answer.json) == (200, {"kind": "failed", "code": "tool.not_found", "message": "no"})


def test_a_warm_call_is_two_commits(api: Api, engine: ScriptedEngine) -> None:
    """E-285: ready already: the Effect is inserted as invoking; commit B falls away."""
    api.put(URL, {})
    api.post(BASH, {"command": "warm it"})
    statements: list[str] = []
    with CaptureQueriesContext(connection) as queries:
        api.post(BASH, {"command": "echo"})
    statements = [query["sql"] for query in queries.captured_queries]
    assert len([sql for sql in statements if sql.startswith("RELEASE SAVEPOINT")]) <= 2
    assert len([sql for sql in statements if "FOR NO KEY UPDATE" in sql]) == 2
    assert not [sql for sql in statements if sql.startswith("UPDATE") and "environments_effect" in sql]


@pytest.mark.parametrize(
    ("tool", "body", "path"),
    [
        ("bash", {}, "/command"),
        ("bash", {"command": ""}, "/command"),
        ("bash", {"command": "x" * 65_537}, "/command"),
        ("bash", {"command": 1}, "/command"),
        ("bash", {"command": None}, "/command"),
        ("bash", {"command": "a\x00b"}, "/command"),
        ("bash", {"command": "x", "timeoutMs": 0}, "/timeoutMs"),
        ("bash", {"command": "x", "timeoutMs": -1}, "/timeoutMs"),
        ("bash", {"command": "x", "timeoutMs": 3_600_001}, "/timeoutMs"),
        ("bash", {"command": "x", "timeoutMs": True}, "/timeoutMs"),
        ("bash", {"command": "x", "env": {"NYLORUN_X": "1"}}, "/env/NYLORUN_X"),
        ("bash", {"command": "x", "env": {"PATH": "1"}}, "/env/PATH"),
        ("bash", {"command": "x", "env": {"http_proxy": "1"}}, "/env/http_proxy"),
        ("bash", {"command": "x", "env": {"1A": "1"}}, "/env/1A"),
        ("bash", {"command": "x", "env": {"A": "x" * 4097}}, "/env/A"),
        ("bash", {"command": "x", "env": {f"A{n}": "" for n in range(65)}}, "/env"),
        ("bash", {"command": "x", "stdin": "x" * 1_048_577}, "/stdin"),
        ("bash", {"command": "x", "other": 1}, "/other"),
        ("read", {"path": "a", "limit": 0}, "/limit"),
        ("read", {"path": "a", "limit": 4_194_305}, "/limit"),
        ("read", {"path": "a", "offset": -1}, "/offset"),
        ("read", {"path": ""}, "/path"),
        ("write", {"path": "a"}, ""),
        ("write", {"path": "a", "content": "x", "contentBase64": "eA=="}, ""),
        ("write", {"path": "a", "contentBase64": "!"}, "/contentBase64"),
        ("write", {"path": "a", "content": "x", "mode": "4755"}, "/mode"),
        ("list", {"path": "a", "recursive": "yes"}, "/recursive"),
        ("move", {"from": "a"}, "/to"),
    ],
)
def test_a_bad_input_names_its_problem_and_runs_nothing(
    api: Api, engine: ScriptedEngine, tool: str, body: dict[str, Any], path: str
) -> None:
    """E-235: every input has bounds; nothing is journaled and nothing is sent."""
    api.put(URL, {})
    answer = api.post(f"{URL}/tools/{tool}", body)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert path in [problem["path"] for problem in answer.json["details"]["problems"]]
    assert engine.calls == []
    assert Effect.objects.count() == 0


def test_bounds_are_inclusive(api: Api, engine: ScriptedEngine) -> None:
    """E-235: the largest values are taken."""
    api.put(URL, {})
    body = {"command": "x" * 65_536, "timeoutMs": 3_600_000, "stdin": "\x01" * 1_048_576, "env": {"A": "x" * 4096}}
    assert api.post(BASH, body).status == 200
    assert api.post(BASH, {"command": "x", "timeoutMs": 1}).status == 200


def test_an_unknown_tool_is_404_and_kind_none_has_none(api: Api, engine: ScriptedEngine) -> None:
    """E-239: kind none: 409 environment_unavailable."""
    api.put(URL, {})
    assert api.post(f"{URL}/tools/python", {}).status == 404
    api.put("/v1/environments/none", {"kind": "none"})
    answer = api.post("/v1/environments/none/tools/bash", {"command": "true"})
    assert (answer.status, answer.json["code"]) == (409, "environment_unavailable")
    assert (
        api.post("/v1/environments/missing/tools/bash", {"command": "true"}).json["code"] == "environment_unavailable"
    )


def test_a_guarded_environment_is_404_to_another_person(api: Api, engine: ScriptedEngine) -> None:
    """E-02, E-85: the guard's owner and a bare application pass."""
    api.put(URL, {"ownerUserId": "ada"})
    assert api.post(BASH, {"command": "x"}).status == 200
    assert api.as_subject("ada", "environments:write").post(BASH, {"command": "x"}).status == 200
    assert api.as_subject("bob", "environments:write").post(BASH, {"command": "x"}).status == 404


def test_an_engine_that_goes_away_during_a_call_is_interrupted_never_run_again(
    api: Api, engine: ScriptedEngine
) -> None:
    """E-284, pain 10: accepted, then gone: tool.interrupted, once; never a success."""
    api.put(URL, {})
    engine.script = lambda header, body: "drop"
    answer = api.post(BASH, {"command": "x"})
    assert (answer.status, answer.json["kind"], answer.json["code"]) == (200, "failed", "tool.interrupted")
    assert len(engine.calls) == 1
    assert Effect.objects.count() == 0


def test_a_refused_call_has_run_nothing_and_is_sent_again(api: Api, engine: ScriptedEngine) -> None:
    """A call that is not accepted goes back to waiting and is sent again."""
    api.put(URL, {})
    answers = iter(["refuse", "refuse"])
    engine.script = lambda header, body: next(answers, None) or tool_views_echo(header)
    assert api.post(BASH, {"command": "again"}).json["output"]["stdout"] == "again"
    assert len(engine.calls) == 3


def tool_views_echo(header: dict[str, Any]) -> dict[str, Any]:
    text = header["args"]["command"].encode()
    output = {"exitCode": 0, "timedOut": False, "durationMs": 1, "stdoutBytes": len(text), "stderrBytes": 0}
    return {"stdout": text, "output": output}


def test_a_call_that_waits_too_long_is_503_and_leaves_nothing(api: Api, engine: ScriptedEngine) -> None:
    """E-240: START_WAIT, then environment_starting with Retry-After; the Effect row is removed."""
    api.put(URL, {})
    engine.script = lambda header, body: "refuse"
    answer = api.post(BASH, {"command": "x"})
    assert (answer.status, answer.json["code"], answer.headers["Retry-After"]) == (503, "environment_starting", "5")
    assert Effect.objects.count() == 0


def test_a_call_on_a_pod_that_failed_meanwhile_says_why(api: Api, engine: ScriptedEngine, pods: FakeDriver) -> None:
    """E-240: a pod that turns failed while a call waits: 409 with its reason."""
    api.put(URL, {"kind": "pod"})
    Environment.objects.filter(pk="demo").update(observed="failed", reason="setup_failed: command 1 exited 1")
    call = calls.Begun("ef_1", Environment.objects.get(pk="demo").uid, None)
    with pytest.raises(Exception, match="setup_failed: command 1 exited 1"):
        calls.look(call, "demo")


@pytest.mark.parametrize("verb", ["stop", "reset"])
def test_a_running_call_keeps_stop_reset_and_delete_away(api: Api, pods: FakeDriver, verb: str) -> None:
    """E-35, E-98: busy: 409 environment_busy without Retry-After; force ends the call."""
    api.put(URL, {"kind": "pod"})
    busy()
    for answer in (api.post(f"{URL}/{verb}", {}), api.delete(URL)):
        assert (answer.status, answer.json["code"]) == (409, "environment_busy")
        assert "Retry-After" not in answer.headers
    assert api.delete(f"{URL}?force=true").json["deleted"]
    assert Effect.objects.count() == 0


def test_a_lapsed_call_makes_nothing_busy_and_its_row_goes(api: Api, pods: FakeDriver) -> None:
    """E-284: once the lease has passed the Environment is free; the sweep removes the row."""
    api.put(URL, {"kind": "pod"})
    effect = busy()
    Effect.objects.filter(pk=effect.pk).update(lease_until=database_now() - timedelta(seconds=1))
    assert api.post(f"{URL}/stop", {}).status == 200
    assert calls.remove_lapsed() == 1
    assert Effect.objects.count() == 0


def test_a_call_somebody_settled_is_answered_interrupted(api: Api, engine: ScriptedEngine) -> None:
    """E-284: the first settlement stays: a delete with force in the middle of a call."""
    api.put(URL, {})
    begun = calls.begin(CallTool("demo", "bash", ""), owner=None, pods=FAKE_PODS)
    api.delete(f"{URL}?force=true")
    api.put(URL, {})
    assert not calls.finish(begun, "demo", workspace_made=True)
    assert Environment.objects.get(pk="demo").workspace_at is None


def test_leases_of_running_calls_are_renewed_in_one_statement(api: Api) -> None:
    """E-284: renewed while it runs."""
    api.put(URL, {})
    effect = busy()
    Effect.objects.filter(pk=effect.pk).update(lease_until=database_now())
    with CaptureQueriesContext(connection) as queries:
        calls.renew([effect.pk, "ef_gone"])
    assert len([query for query in queries.captured_queries if query["sql"].startswith("UPDATE")]) == 1
    assert Effect.objects.get().lease_until > database_now() + timedelta(seconds=25)


def test_hold_and_keys_belong_to_turns(api: Api, engine: ScriptedEngine) -> None:
    """What this version does not serve is refused, never ignored."""
    api.put(URL, {})
    assert api.post(f"{BASH}?hold=1", {"command": "x"}).status == 400
    assert api.post(BASH, {"command": "x"}, **{"Idempotency-Key": "k"}).status == 400
    assert engine.calls == []
    assert tool_views.TOOLS.keys() == {"bash", "read", "write", "list", "stat", "remove", "move"}
