"""A Secret on the wire from a virtual workspace, all real but the internet: API, rows, tokens, Engine, gate."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from environments.models import Environment
from environments.services import egress
from nylorun import config
from nylorun.access import signing
from nylorun.db.tx import database_now
from nylorun.record.models import Event
from tests.gate.sites import Site, site
from tests.gate.support import HOST, OTHER, PUBLIC
from tests.support.client import Api
from tests.support.platform import eventually
from tests.vault.helpers import PLAIN, put, uses
from tests.vault.test_way_out import Running
from vault.gate.doorkeeper import Pass, Stale
from vault.services import authority

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/v1/environments/demo"
RECIPE = {"network": {"allow": [HOST]}}
BEARER = {"type": "bearer", "url": f"https://{HOST}/v1", "value": PLAIN}


@pytest.fixture
def running(served: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """The gate that the API names; workspaces trust the internet of these tests."""
    gate = Running()
    own = authority.certificate()
    monkeypatch.setattr(authority, "certificate", lambda: own + gate.certificates._certificate.decode())
    monkeypatch.setattr(config.current(), "egress_url", gate.url)
    yield gate
    gate.close()


@pytest.fixture
def real(running: Running) -> Iterator[Site]:
    """A real server behind the allowed host."""
    running.internet.names[HOST] = [[PUBLIC]]
    with site(running.certificates.server(HOST)) as made:
        running.internet.servers[PUBLIC, 443] = made.port
        yield made


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every egress token that was made."""
    made: list[str] = []
    mint = signing.mint

    def noted(kind: signing.TokenKind, *arguments: Any, **named: Any) -> str:
        token = mint(kind, *arguments, **named)
        made.extend([token] if kind is signing.EGRESS else [])
        return token

    monkeypatch.setattr(signing, "mint", noted)
    return made


def bash(api: Api, command: str, id: str = "demo", **input: Any) -> dict[str, Any]:
    answer = api.post(f"/v1/environments/{id}/tools/bash", {"command": command, **input})
    assert answer.status == 200, answer.json
    return dict(answer.json["output"])


def test_the_server_sees_the_secret_and_the_workspace_never_does(served: Api, real: Site, tokens: list[str]) -> None:
    """E-265, E-74, E-73: the header is set on the wire; the variable says only that it is managed."""
    served.put(URL, RECIPE)
    put(served, "API_KEY", BEARER)
    said = bash(
        served,
        f'curl -sS -H "Authorization: Bearer $API_KEY" https://{HOST}/v1/ok -D -; curl -sS https://{HOST}/v2/ok;'
        " env; echo [$API_KEY]; cat /proc/self/environ; set",
    )
    assert "200" in said["stdout"]
    assert "[nylorun-managed]" in said["stdout"]
    assert [seen.all("Authorization") for seen in real.seen] == [[f"Bearer {PLAIN}"], []]
    assert uses() == [("approved", "API_KEY", HOST)] * 2
    assert PLAIN not in said["stdout"] + said["stderr"]
    assert tokens[0] not in said["stdout"] + said["stderr"]


def test_a_token_is_of_one_call_and_one_row(served: Api, real: Site, tokens: list[str]) -> None:
    """E-111: ``sub`` and ``uid``, good for the time limit and a minute; of an id used again it lets nothing out."""
    served.put(URL, RECIPE)
    for _ in range(2):
        assert bash(served, f"curl -sS https://{HOST}/ok", timeoutMs=30_000)["exitCode"] == 0
    uid = str(Environment.objects.get(pk="demo").uid)
    first, second = (signing.verify(signing.EGRESS, token, now=database_now()) for token in tokens)
    for claims in (first, second):
        assert {name for name in claims if name not in ("iss", "aud", "iat", "jti")} == {"sub", "uid", "exp"}
        assert (claims["sub"], claims["uid"]) == ("demo", uid)
        assert claims["exp"] - claims["iat"] == 90
    assert first["jti"] != second["jti"]
    with pytest.raises(signing.TokenOver):
        signing.verify(signing.EGRESS, tokens[0], now=database_now() + timedelta(seconds=121))
    assert isinstance(egress.admit(tokens[0]), Pass)
    assert served.delete(URL).status in (200, 202, 204)
    served.put(URL, RECIPE)
    assert isinstance(egress.admit(tokens[0]), Stale)


def test_two_workspaces_use_their_own_secrets(served: Api, real: Site) -> None:
    """E-265: one Engine, one host, two Environments."""
    for id, value in (("demo", PLAIN), ("other", "another-value")):
        served.put(f"/v1/environments/{id}", RECIPE)
        put(served, "API_KEY", {**BEARER, "value": value}, id=id)
    served.put("/v1/environments/bare", RECIPE)
    for id in ("demo", "other", "bare"):
        assert bash(served, f"curl -sS https://{HOST}/v1/{id}/ok", id=id)["exitCode"] == 0
    assert [(seen.path, seen.all("Authorization")) for seen in real.seen] == [
        ("/v1/demo/ok", [f"Bearer {PLAIN}"]),
        ("/v1/other/ok", ["Bearer another-value"]),
        ("/v1/bare/ok", []),
    ]


def test_a_host_that_is_not_allowed_is_refused_and_recorded(served: Api, real: Site) -> None:
    """E-197: the event names host and reason."""
    served.put(URL, RECIPE)
    said = bash(served, f"curl -sS https://{OTHER}/ok")
    assert said["exitCode"] == 56
    assert "403" in said["stderr"]
    eventually(lambda: Event.objects.filter(type="egress").exists(), within=10, what="the refusal is recorded")
    payload = Event.objects.get(type="egress").payload
    assert (payload["host"], payload["reason"]) == (OTHER, "not_allowed")


def test_without_network_a_call_takes_no_token_along(served: Api, real: Site, tokens: list[str]) -> None:
    """No ``network``: no way out, and nothing of one in any call; file tools never have one."""
    served.put("/v1/environments/closed", {})
    put(served, "API_KEY", BEARER, id="closed")
    said = bash(served, f"curl -sS https://{HOST}/v1/ok", id="closed")
    assert (said["exitCode"], said["stderr"]) == (6, "curl: this workspace has no network\n")
    served.put(URL, RECIPE)
    assert served.post(f"{URL}/tools/write", {"path": "f", "content": "x"}).status == 200
    assert tokens == []
    assert real.seen == []


def test_a_stream_has_the_way_out_too(served: Api, real: Site) -> None:
    """E-265: a command whose output is streamed is a call like any other."""
    served.put(URL, RECIPE)
    put(served, "API_KEY", BEARER)
    answer = served.post(f"{URL}/tools/bash", {"command": f"curl -sS https://{HOST}/v1/ok"}, Accept="text/event-stream")
    assert PLAIN not in answer.body.decode()
    assert real.last.all("Authorization") == [f"Bearer {PLAIN}"]
