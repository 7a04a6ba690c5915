"""Secrets over HTTP: what a write takes, what refuses it, what an answer shows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from environments.models import Environment
from nylorun.db.tx import database_now
from tests.support.client import Answer, Api
from vault.models import Secret, VaultAudit

URL = "/v1/environments/demo"
SECRETS = f"{URL}/secrets"
PLAIN = "s3cret-value"
VARIABLE = {"type": "environment_variable", "value": PLAIN}
HOST = {"type": "environment_secret", "allowedHosts": ["api.example.org"], "value": PLAIN}
BEARER = {"type": "bearer", "url": "https://api.example.org/v1", "value": PLAIN}
HEADERS = {"type": "headers", "url": "https://api.example.org/v1", "headers": {"X-Api-Key": PLAIN, "A": "b"}}
SLOTS = {
    "DB": {"type": "environment_variable", "required": True, "description": "d"},
    "KEY": {
        "type": "environment_secret", "allowedHosts": ["api.example.org"],
        "inject": {"header": "X-Key", "format": "{value}"},
    },
    "SITE": {"type": "headers", "url": "https://b.example.org/v1"},
}  # fmt: skip


@pytest.fixture
def demo(api: Api) -> Api:
    """An Environment without Slots."""
    assert api.put(URL, {"kind": "none"}).status == 201
    return api


@pytest.fixture
def slotted(api: Api) -> Api:
    """An Environment from ``box@1``, which declares :data:`SLOTS`."""
    body = {"kind": "virtual", "network": {"allow": ["api.example.org", "b.example.org"]}, "secrets": SLOTS}
    assert api.put("/v1/environment-manifests/box", body).status == 201
    assert api.put(URL, {"manifest": "box"}).status == 201
    return api


def refused(answer: Answer) -> tuple[int, str]:
    assert PLAIN not in answer.body.decode()
    return answer.status, answer.json["code"]


def paths(answer: Answer) -> list[str]:
    assert refused(answer) == (400, "invalid_request")
    return [problem["path"] for problem in answer.json["details"]["problems"]]


def audit() -> list[tuple[str, str, str | None]]:
    return list(VaultAudit.objects.order_by("ord").values_list("action", "outcome", "name"))


@pytest.mark.parametrize("body", [VARIABLE, HOST, BEARER, HEADERS], ids=lambda body: body["type"])
def test_a_typed_write_makes_a_secret_and_shows_no_value(demo: Api, body: dict[str, Any]) -> None:
    """E-61, E-70, E-66: 201 with the binding and header names; the same in the list."""
    answer = demo.put(f"{SECRETS}/NAME", body)
    assert (answer.status, answer.headers["Location"]) == (201, f"{SECRETS}/NAME")
    assert PLAIN not in answer.body.decode()
    binding = {name: member for name, member in body.items() if name not in ("value", "headers")}
    names = {"headerNames": ["a", "x-api-key"]} if "headers" in body else {}
    shown = answer.json
    assert shown == {"name": "NAME", **binding, **names, "createdAt": shown["createdAt"]}
    assert demo.get(SECRETS).json == {"secrets": [shown]}


def test_a_second_write_rotates(demo: Api) -> None:
    """E-71, E-69: same row and type, new data key, ``rotatedAt``, one audit row each."""
    demo.put(f"{SECRETS}/NAME", VARIABLE)
    before = Secret.objects.get()
    answer = demo.put(f"{SECRETS}/NAME", {**VARIABLE, "requestId": "r-2"}, X_Request_Id="x")
    after = Secret.objects.get()
    assert (answer.status, "rotatedAt" in answer.json, "Location" in answer.headers) == (200, True, False)
    assert (after.id, after.type, after.created_at) == (before.id, before.type, before.created_at)
    assert bytes(after.nonce) != bytes(before.nonce)
    assert bytes(after.wrapped_dek) != bytes(before.wrapped_dek)
    assert audit() == [("create", "created", "NAME"), ("rotate", "rotated", "NAME")]
    first, row = VaultAudit.objects.order_by("ord")
    assert first.request_id
    assert (row.actor, row.environment_id, row.vault_id, row.credential_id, row.request_id) == (
        "app-1", "demo", after.vault_id, after.id, "r-2",
    )  # fmt: skip


def test_another_type_under_a_name_is_a_conflict(demo: Api) -> None:
    """E-71, E-74: rotation keeps the type."""
    demo.put(f"{SECRETS}/NAME", VARIABLE)
    answer = demo.put(f"{SECRETS}/NAME", BEARER)
    assert refused(answer) == (409, "credential_conflict")
    assert answer.json["details"] == {"with": "NAME"}


def test_a_delete_removes_and_says_so(demo: Api) -> None:
    """E-70: missing, malformed and removed names are ``deleted: false``."""
    demo.put(f"{SECRETS}/NAME", VARIABLE)
    assert demo.delete(f"{SECRETS}/NAME").json == {"name": "NAME", "deleted": True}
    assert demo.delete(f"{SECRETS}/NAME").json == {"name": "NAME", "deleted": False}
    assert demo.delete(f"{SECRETS}/a%20b").json == {"name": "a b", "deleted": False}
    assert audit() == [("create", "created", "NAME"), ("delete", "deleted", "NAME")]
    assert demo.get(SECRETS).json == {"secrets": []}


def test_writes_and_deletes_are_use_and_a_list_is_not(demo: Api) -> None:
    """E-77: ``lastUsedAt`` moves with a write and with a delete."""
    old = database_now() - timedelta(days=1)
    for act, moves in (
        (lambda: demo.get(SECRETS), False),
        (lambda: demo.put(f"{SECRETS}/NAME", VARIABLE), True),
        (lambda: demo.put(f"{SECRETS}/NAME", {"value": PLAIN}), False),
        (lambda: demo.delete(f"{SECRETS}/NAME"), True),
    ):
        Environment.objects.update(last_used_at=old)
        act()
        assert (Environment.objects.get().last_used_at > old) is moves


def test_what_is_missing_or_out_of_reach_is_the_opaque_404(demo: Api) -> None:
    """E-66: for every method."""
    for method, body in (("GET", None), ("PUT", VARIABLE), ("DELETE", None)):
        path = "/v1/environments/no/secrets" + ("" if method == "GET" else "/NAME")
        assert demo.request(method, path, body).status == 404


def test_whose_secrets_a_person_may_touch(demo: Api) -> None:
    """E-66, E-68: with ``vaults:own`` only where the owner guard is the Subject; the Subject is the actor."""
    write = demo.as_subject("ada", "environments:write")
    own, read = demo.as_subject("ada", "vaults:own"), demo.as_subject("ada", "sessions:own")
    assert write.put(f"{SECRETS}/NAME", VARIABLE).status == 201
    assert VaultAudit.objects.get().actor == "ada"
    assert (read.get(SECRETS).status, write.get(SECRETS).status) == (200, 200)
    assert refused(read.put(f"{SECRETS}/NAME", VARIABLE)) == (403, "scope_required")
    for answer in (own.get(SECRETS), own.put(f"{SECRETS}/NAME", VARIABLE), own.delete(f"{SECRETS}/NAME")):
        assert refused(answer) == (404, "not_found")
    demo.put(URL, {"ownerUserId": "ada"})
    assert own.get(SECRETS).status == own.put(f"{SECRETS}/NAME", VARIABLE).status == 200
    assert own.delete(f"{SECRETS}/NAME").json["deleted"] is True
    eve = demo.as_subject("eve", "vaults:own")
    assert refused(eve.put(f"{SECRETS}/NAME", VARIABLE)) == (404, "not_found")


# ------------------------------------------------------------------------------------------------------ without Slots


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({}, [""]),
        ({"value": PLAIN}, ["/type"]),
        ({"headers": {"A": PLAIN}}, ["/type"]),
        ({"value": PLAIN, "headers": {"A": PLAIN}}, [""]),
        ({**VARIABLE, "type": "model"}, ["/type"]),
        ({**VARIABLE, "type": 1}, ["/type"]),
        ({"type": "environment_variable"}, ["/value"]),
        ({"type": "environment_variable", "value": 1}, ["/value"]),
        ({"type": "environment_variable", "value": None}, ["/value"]),
        ({**VARIABLE, "url": "https://a.org"}, ["/url"]),
        ({**VARIABLE, "value": "x" * (32 * 1024 + 1)}, ["/value"]),
        ({**VARIABLE, "value": "é" * (16 * 1024 + 1)}, ["/value"]),
        ({**VARIABLE, "value": "a\0b"}, ["/value"]),
        ({**HOST, "value": "x" * (8 * 1024 + 1)}, ["/value"]),
        ({**HOST, "value": "a\nb"}, ["/value"]),
        ({**HOST, "value": "a\rb"}, ["/value"]),
        ({**HOST, "allowedHosts": []}, ["/allowedHosts"]),
        ({**HOST, "allowedHosts": ["*.example.org"]}, ["/allowedHosts/0"]),
        ({**HOST, "allowedHosts": ["127.0.0.1"]}, ["/allowedHosts/0"]),
        ({**HOST, "inject": {"header": "Host", "format": "{value}"}}, ["/inject/header"]),
        ({**HOST, "inject": {"header": "X", "format": "none"}}, ["/inject/format"]),
        ({**BEARER, "url": "http://api.example.org"}, ["/url"]),
        ({**BEARER, "url": "https://api.example.org?a"}, ["/url"]),
        ({**BEARER, "via": "https://proxy.example.org"}, ["/via"]),
        ({**BEARER, "identity": {"header": "Authorization"}}, ["/identity/header"]),
        ({**BEARER, "headers": {"A": "b"}}, ["/headers"]),
        ({**HEADERS, "headers": {}}, ["/headers"]),
        ({**HEADERS, "headers": {f"X-{n}": "v" for n in range(21)}}, ["/headers"]),
        ({**HEADERS, "headers": {"Host": PLAIN}}, ["/headers/Host"]),
        ({**HEADERS, "headers": {"Proxy-X": PLAIN}}, ["/headers/Proxy-X"]),
        ({**HEADERS, "headers": {"X": PLAIN, "x": PLAIN}}, ["/headers/x"]),
        ({**HEADERS, "headers": {"X": f"{PLAIN}\r"}}, ["/headers/X"]),
        ({**HEADERS, "headers": {"X": "v" * (8 * 1024 + 1)}}, ["/headers/X"]),
        ({**HEADERS, "identity": {"header": "a"}}, ["/identity/header"]),
        ({**VARIABLE, "requestId": ""}, ["/requestId"]),
    ],
)
def test_a_body_that_breaks_its_schema_names_where(demo: Api, body: dict[str, Any], wanted: list[str]) -> None:
    """E-61: 400 with every problem, and no value in it."""
    assert paths(demo.put(f"{SECRETS}/NAME", body)) == wanted
    assert not Secret.objects.exists()


@pytest.mark.parametrize(
    ("name", "body"),
    [("1A", VARIABLE), ("A.B", VARIABLE), ("PATH", VARIABLE), ("NYLORUN_X", VARIABLE), ("https_proxy", VARIABLE),
     ("1A", HOST), ("a%20b", HOST), ("%00", HOST), ("x" * 129, HOST), ("é", HOST)],
)  # fmt: skip
def test_a_name_must_fit_its_type(demo: Api, name: str, body: dict[str, Any]) -> None:
    """E-61: variable names for variables, the wider grammar for the others."""
    assert paths(demo.put(f"{SECRETS}/{name.encode().decode('ascii', 'ignore') or '%C3%A9'}", body)) == ["{name}"]
    assert demo.put(f"{SECRETS}/A.B-c", HOST).status == 201


def test_bounds_hold_what_they_say(demo: Api) -> None:
    """E-61: exactly the largest values."""
    largest = {f"X-{n}": "v" * 8192 for n in range(20)}
    assert demo.put(f"{SECRETS}/A", {**VARIABLE, "value": "x" * 32 * 1024}).status == 201
    assert demo.put(f"{SECRETS}/B", {**HOST, "value": "x" * 8192}).status == 201
    assert demo.put(f"{SECRETS}/C", {**HEADERS, "headers": largest, "url": "https://c.example.org"}).status == 201
    assert demo.put(f"{SECRETS}/E", {**VARIABLE, "value": ""}).status == 201


def test_bindings_are_kept_in_their_normal_form(demo: Api) -> None:
    """E-63: hosts lower-cased, sorted and unique; a default left out."""
    body = {**HOST, "allowedHosts": ["B.org", "a.org", "b.org"],
            "inject": {"header": "Authorization", "format": "Bearer {value}"}}  # fmt: skip
    shown = demo.put(f"{SECRETS}/A", body).json
    assert (shown["allowedHosts"], "inject" in shown) == (["a.org", "b.org"], False)


def test_via_is_one_of_the_tenants(demo: Api) -> None:
    """E-61: only an operator opens the gate's own network."""
    via = "https://proxy.example.org/base"
    assert demo.put("/v1/tenant/sandbox", {"limits": {"via": [via]}}).status == 200
    assert demo.put(f"{SECRETS}/A", {**BEARER, "via": via}).json["via"] == via
    assert paths(demo.put(f"{SECRETS}/B", {**BEARER, "via": "https://proxy.example.org/other"})) == ["/via"]


# --------------------------------------------------------------------------------------------------------- with Slots


def test_declared_slots_take_a_value_alone_or_with_their_binding(slotted: Api) -> None:
    """E-63, E-64, E-65, E-26: and the view says what is set."""
    assert slotted.put(f"{SECRETS}/DB", {"value": PLAIN}).status == 201
    assert slotted.put(f"{SECRETS}/DB", VARIABLE).status == 200
    shown = slotted.put(f"{SECRETS}/KEY", {"value": PLAIN}).json
    assert shown["inject"] == {"header": "X-Key", "format": "{value}"}
    full = {**HOST, "allowedHosts": ["API.example.org"], "inject": {"format": "{value}", "header": "X-Key"}}
    assert slotted.put(f"{SECRETS}/KEY", full).status == 200
    assert slotted.put(f"{SECRETS}/SITE", {"headers": {"X-Api-Key": PLAIN}}).json["headerNames"] == ["x-api-key"]
    slots = [
        {"name": "DB", "type": "environment_variable", "required": True, "set": True},
        {"name": "KEY", "type": "environment_secret", "required": False, "set": True},
        {"name": "SITE", "type": "headers", "required": False, "set": True},
    ]
    assert slotted.get(URL).json["slots"] == slots
    assert slotted.get("/v1/environments").json["environments"][0]["slots"] == slots
    slotted.delete(f"{SECRETS}/DB")
    assert slotted.get(URL).json["slots"][0]["set"] is False


def test_an_undeclared_name_is_refused_with_the_declared_ones(slotted: Api) -> None:
    """E-62: whatever the body; the message names the version and the way on."""
    for body in ({"value": PLAIN}, VARIABLE, {}):
        answer = slotted.put(f"{SECRETS}/OTHER", body or {"value": ""})
        assert refused(answer) == (409, "secret_not_in_manifest")
        assert answer.json["details"] == {"declared": ["DB", "KEY", "SITE"]}
        assert "box@1" in answer.json["message"]
        assert "fork" in answer.json["message"]


@pytest.mark.parametrize(
    ("name", "body"),
    [("DB", BEARER), ("KEY", HOST), ("KEY", {**HOST, "allowedHosts": ["b.example.org"]}),
     ("SITE", {**HEADERS, "url": "https://b.example.org/v2"})],
)  # fmt: skip
def test_a_typed_body_with_another_binding_is_refused(slotted: Api, name: str, body: dict[str, Any]) -> None:
    """E-63: 409 without details."""
    answer = slotted.put(f"{SECRETS}/{name}", body)
    assert refused(answer) == (409, "secret_not_in_manifest")
    assert "details" not in answer.json


def test_a_value_of_the_wrong_form_is_refused(slotted: Api) -> None:
    """E-64: headers for a headers Slot, a value for every other, within the type's bounds."""
    assert paths(slotted.put(f"{SECRETS}/SITE", {"value": PLAIN})) == ["/headers", "/value"]
    assert paths(slotted.put(f"{SECRETS}/DB", {"headers": {"A": PLAIN}})) == ["/value", "/headers"]
    assert paths(slotted.put(f"{SECRETS}/KEY", {"value": f"{PLAIN}\n"})) == ["/value"]
    assert slotted.put(f"{SECRETS}/DB", {"value": f"{PLAIN}\n"}).status == 201


# ------------------------------------------------------------------------------------------------------------- clashes


@pytest.mark.parametrize(
    ("one", "other", "clashes"),
    [
        (HOST, {**HOST, "inject": {"header": "X", "format": "{value}"}}, True),
        (HOST, {**HOST, "allowedHosts": ["b.example.org"]}, False),
        (HOST, BEARER, True),
        (HOST, HEADERS, False),
        (BEARER, BEARER, True),
        (BEARER, {**BEARER, "url": "https://api.example.org/v1/below"}, True),
        (BEARER, {**BEARER, "url": "https://api.example.org/v1beta"}, False),
        (HEADERS, {**HEADERS, "headers": {"x-API-key": "v"}}, True),
        (HEADERS, {**HEADERS, "headers": {"other": "v"}}, False),
        ({**BEARER, "identity": {"header": "A"}}, HEADERS, True),
        (VARIABLE, HOST, False),
    ],
)
def test_two_secrets_of_one_header_and_host_clash(
    demo: Api, one: dict[str, Any], other: dict[str, Any], clashes: bool
) -> None:
    """E-74: with what is stored; the refusal names the other; neither order matters."""
    for first, second in ((one, other), (other, one)):
        assert demo.put(f"{SECRETS}/FIRST", first).status == 201
        answer = demo.put(f"{SECRETS}/SECOND", second)
        assert answer.status == (409 if clashes else 201)
        if clashes:
            assert refused(answer) == (409, "credential_conflict")
            assert answer.json["details"] == {"with": "FIRST"}
        demo.delete(f"{SECRETS}/FIRST")
        demo.delete(f"{SECRETS}/SECOND")


def test_a_rotation_that_clashes_changes_nothing(demo: Api) -> None:
    """E-74: a Secret never clashes with itself; a refused write leaves the old value."""
    demo.put(f"{SECRETS}/A", HEADERS)
    demo.put(f"{SECRETS}/B", {**HEADERS, "headers": {"other": "v"}})
    before = Secret.objects.filter(name="B").values().get()
    assert demo.put(f"{SECRETS}/B", HEADERS).status == 409
    assert Secret.objects.filter(name="B").values().get() == before
    assert demo.put(f"{SECRETS}/A", HEADERS).status == 200


def test_secrets_are_listed_by_creation_then_id(demo: Api) -> None:
    """E-200."""
    for name in ("C", "A", "B"):
        demo.put(f"{SECRETS}/{name}", VARIABLE)
    moment = database_now()
    assert [secret["name"] for secret in demo.get(SECRETS).json["secrets"]] == ["C", "A", "B"]
    Secret.objects.update(created_at=moment)
    by_id = list(Secret.objects.order_by("id").values_list("name", flat=True))
    assert [secret["name"] for secret in demo.get(SECRETS).json["secrets"]] == by_id
