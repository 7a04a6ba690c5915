"""Variables: what a call and a setup run find there, what is written about it, and where no value may stand."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from environments.compute.fake import FakeDriver
from environments.models import Environment, Operation
from environments.services import variables
from environments.services.variables import Variables
from nylorun.access.models import Principal
from nylorun.record.models import Event
from tests.support.client import Api
from tests.support.engines import scripted_engine
from tests.vault.helpers import HOST, PLAIN, put, uses
from tests.workers.test_pods import join
from vault.models import Secret, VaultAudit
from vault.values import Value
from workers.steps import operations as step
from workers.steps import pods as machine

URL = "/v1/environments/demo"


def bash(api: Api, command: str, **input: Any) -> str:
    answer = api.post(f"{URL}/tools/bash", {"command": command, **input})
    assert answer.status == 200, answer.json
    return str(answer.json["output"]["stdout"])


def test_a_call_finds_its_variables_and_the_next_one_those_of_then(served: Api) -> None:
    """E-265: set before ``env``, which lies over them; a write reaches the next call, a delete too."""
    served.put(URL, {})
    assert bash(served, "echo [$NAME]") == "[]\n"
    put(served, "NAME", {"type": "environment_variable", "value": 'it\'s $HOME "q" äß'})
    put(served, "OTHER", {"type": "environment_variable", "value": "two\nlines"})
    assert bash(served, 'printf %s "$NAME|$OTHER"') == 'it\'s $HOME "q" äß|two\nlines'
    assert bash(served, "echo $NAME", env={"NAME": "mine"}) == "mine\n"
    put(served, "NAME", {"type": "environment_variable", "value": "new"})
    assert bash(served, "echo $NAME") == "new\n"
    served.delete(f"{URL}/secrets/NAME")
    served.delete(f"{URL}/secrets/OTHER")
    assert bash(served, "echo [$NAME$OTHER]") == "[]\n"
    assert not Environment.objects.get(pk="demo").has_secrets


def test_a_hidden_secret_is_a_variable_that_says_so(served: Api) -> None:
    """E-74, E-265: the sandbox sees ``nylorun-managed`` under a name that can be a variable, never the value."""
    served.put(URL, {})
    put(served, "KEY", HOST)
    put(served, "not.a-variable", {**HOST, "allowedHosts": ["d.example.org"]})
    seen = bash(served, "env; echo $KEY")
    assert seen.splitlines()[-1] == "nylorun-managed"
    assert PLAIN not in seen
    assert "not.a-variable" not in seen


def test_each_call_is_one_use_and_file_tools_take_nothing(served: Api) -> None:
    """E-73, E-68: one row for each variable and call, by whom, written in the commit that precedes it."""
    served.put(URL, {})
    put(served, "A", {"type": "environment_variable", "value": "1"})
    put(served, "B", {"type": "environment_variable", "value": "2"})
    put(served, "KEY", HOST)
    bash(served, "true")
    assert uses() == [("approved", "A", None), ("approved", "B", None)]
    assert {row.actor for row in VaultAudit.objects.filter(action="use")} == {Principal.objects.get().id}
    served.post(f"{URL}/tools/write", {"path": "f", "content": "x"})
    served.post(f"{URL}/tools/read", {"path": "f"})
    assert len(uses()) == 2


def test_an_environment_without_secrets_asks_no_vault(served: Api) -> None:
    """A call on one costs no query more."""
    served.put(URL, {})
    bash(served, "true")
    with CaptureQueriesContext(connection) as queries:
        bash(served, "true")
    assert not [query["sql"] for query in queries if "vault_" in query["sql"]]


def test_what_cannot_be_opened_stops_the_call_before_it_is_sent(served: Api) -> None:
    """E-69, E-73: 503 with one text, a refused use on record, no call left behind, nothing run."""
    served.put(URL, {})
    put(served, "NAME", {"type": "environment_variable", "value": PLAIN})
    bash(served, "echo once > ran")
    Secret.objects.update(ciphertext=b"0" * 40)
    answer = served.post(f"{URL}/tools/bash", {"command": "echo twice >> ran"})
    assert (answer.status, PLAIN in answer.body.decode()) == (503, False)
    assert uses()[-1] == ("refused", "NAME", None)
    served.delete(f"{URL}/secrets/NAME")
    assert bash(served, "cat ran") == "once\n"


def test_no_value_is_in_a_row_an_event_or_an_error_of_a_call(served: Api) -> None:
    """E-70: neither the journal, nor events, nor the audit, nor what a failed call says holds a value."""
    served.put(URL, {})
    put(served, "NAME", {"type": "environment_variable", "value": PLAIN})
    answer = served.post(f"{URL}/tools/bash", {"command": "cd /nowhere && echo $NAME; exit 3"})
    assert PLAIN not in answer.body.decode()
    for model in (Environment, Operation, Event, VaultAudit):
        assert PLAIN not in str(list(model.objects.values()))
    assert PLAIN not in repr(Variables({"NAME": Value.of_text(PLAIN)}))


def test_a_setup_run_takes_them_and_what_is_kept_of_it_is_masked(api: Api, pods: FakeDriver) -> None:
    """E-118, E-293: each command gets them; in the tail that is kept each value stands as its name."""
    assert api.put(URL, {"kind": "pod", "setup": ["one"]}).status == 201
    put(api, "LONG", {"type": "environment_variable", "value": PLAIN})
    put(api, "SHORT", {"type": "environment_variable", "value": "abc"})
    machine.reconcile_pod("demo")
    assert join(api, pods).status == 200
    text = f"{PLAIN} abc\n".encode()

    def script(header: dict[str, Any], body: bytes) -> dict[str, Any]:
        output = {"exitCode": 1, "timedOut": False, "durationMs": 1, "stdoutBytes": len(text), "stderrBytes": 0}
        return {"stdout": text, "output": output}

    with scripted_engine(script) as engine:
        Environment.objects.filter(pk="demo").update(engine_address=engine.address)
        step.run_operation(Operation.objects.get().id)
        assert engine.calls[0]["args"]["env"] == {"LONG": PLAIN, "SHORT": "abc"}
    assert Operation.objects.get().data["setup"]["output"] == "[LONG] abc\n"
    assert [name for _, name, _ in uses()] == ["LONG", "SHORT"]
    for model in (Environment, Operation, Event, VaultAudit):
        assert PLAIN not in str(list(model.objects.values()))


@pytest.mark.parametrize(
    ("values", "text", "masked"),
    [
        ({"A": "secret"}, "a secret, secretly", "a [A], [A]ly"),
        ({"A": "short"}, "a short one", "a short one"),
        ({"A": "secret", "B": "secrets"}, "secrets", "[B]"),
        ({"A": "äöü"}, "äöü", "[A]"),
    ],
)
def test_masking(values: dict[str, str], text: str, masked: str) -> None:
    """Values of 6 bytes or more, the longest first."""
    assert Variables({name: Value.of_text(value) for name, value in values.items()}).mask(text) == masked


def test_a_use_is_committed_before_a_value_is_there(served: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-73: when the commit fails, nothing leaves."""
    served.put(URL, {})
    put(served, "NAME", {"type": "environment_variable", "value": PLAIN})
    opened: list[int] = []
    real = variables.opened

    def counted(noted: Any) -> Any:
        opened.append(VaultAudit.objects.filter(action="use").count())
        return real(noted)

    monkeypatch.setattr(variables, "opened", counted)
    bash(served, "true")
    assert opened == [1]
