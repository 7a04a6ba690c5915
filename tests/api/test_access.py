"""Who calls: application keys, Subjects and scopes, and what each route word asks of them."""

from __future__ import annotations

from io import StringIO
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from nylorun.access import authentication
from nylorun.access.authentication import key_hash
from nylorun.access.gunicorn import pre_request
from nylorun.access.models import Principal
from nylorun.http.caller import ALL_SCOPES, Caller
from nylorun.http.words import Word
from nylorun.kernel.errors import NotFound
from tests.support.client import Answer, Api

ME = "/v1/me"
WORDS = [word.value for word in Word]


@pytest.fixture(autouse=True)
def door_routes(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.api.door_urls"


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["code"]


def run(*command: str) -> str:
    out = StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


# --- keys


def test_a_key_is_printed_once_and_kept_as_a_hash(db: Any) -> None:
    """E-159: 64 lower-case hex digits on standard output and nothing else; only the SHA-256 is stored."""
    printed = run("create_application", "billing")
    key = printed.strip()
    assert printed == f"{key}\n"
    assert (len(key), set(key) <= set("0123456789abcdef")) == (64, True)
    row = Principal.objects.get()
    assert (row.id, bytes(row.token_hash)) == ("billing", key_hash(key))
    assert Api({"Authorization": f"Bearer {key}"}).get(ME).json["via"] == "application"


def test_an_existing_application_gets_another_key_only_on_demand(db: Any) -> None:
    """E-159: a key is never replaced by accident; a replaced one is unknown at once."""
    first = Api({"Authorization": f"Bearer {run('create_application', 'a').strip()}"})
    with pytest.raises(CommandError, match="--replace"):
        run("create_application", "a")
    assert first.get(ME).status == 200
    second = Api({"Authorization": f"Bearer {run('create_application', 'a', '--replace').strip()}"})
    assert (first.get(ME).status, second.get(ME).status) == (404, 200)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a-", "a" * 65, "é", "a\n", "a/b"])
def test_an_application_id_is_a_plain_name(db: Any, name: str) -> None:
    """Pain 25: ids match one pattern."""
    with pytest.raises(CommandError):
        run("create_application", "--", name)


def test_a_revoked_key_is_401(db: Any) -> None:
    """E-159: a key that was good once says so, with WWW-Authenticate; revoking twice changes nothing."""
    key = run("create_application", "a").strip()
    run("revoke_application", "a")
    ended = Principal.objects.get().revoked_at
    run("revoke_application", "a")
    assert Principal.objects.get().revoked_at == ended
    answer = Api({"Authorization": f"Bearer {key}"}).get(ME)
    assert code(answer) == (401, "token_expired")
    assert answer.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
    assert "\trevoked " in run("list_applications")
    with pytest.raises(CommandError, match="no application"):
        run("revoke_application", "b")
    assert run("create_application", "a", "--replace").strip() != key
    assert run("list_applications").endswith("\tactive\n")


def test_a_browser_may_not_use_an_application_key(api: Api) -> None:
    """E-159: an Origin header beside an application key is 403; beside an unknown one it is the opaque 404."""
    assert code(api.get(ME, Origin="https://app.example.org")) == (403, "origin_rejected")
    assert code(api.get(ME, Origin="")) == (403, "origin_rejected")
    unknown = Api({"Authorization": f"Bearer {'0' * 64}", "Origin": "https://app.example.org"})
    assert code(unknown.get(ME)) == (404, "not_found")


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_died_unused_costs_no_request() -> None:
    """Pain 23: after a restart of the database the first look takes another connection."""
    key = run("create_application", "a").strip()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    with psycopg.connect(**plain_parameters(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert authentication._principal(key) == ("a", False)


def plain_parameters() -> dict[str, Any]:
    parameters = connection.get_connection_params()
    return {name: parameters[name] for name in ("dbname", "user", "host", "password", "port") if name in parameters}


# --- Subjects


@pytest.mark.parametrize(
    "subject", ["a", "ada@example.org", "Ada Lovelace, Countess", "~" * 200, "a" + " " * 198 + "b"]
)
def test_an_application_may_act_for_a_subject(api: Api, subject: str) -> None:
    """E-169, E-260: Subject and scopes by headers."""
    me = api.as_subject(subject, "sessions:own", "agents:read").get(ME).json
    assert (me["subject"], me["via"], me["scopes"]) == (subject, "application-subject", ["agents:read", "sessions:own"])


@pytest.mark.parametrize("subject", ["", " ", " a", "a ", "host", "installation", "é", "a" * 201, "a\tb", "\x7f"])
def test_a_malformed_or_reserved_subject_is_400(api: Api, subject: str) -> None:
    """E-169: 400 subject_invalid."""
    assert code(api.as_subject(subject, "sessions:own").get(ME)) == (400, "subject_invalid")


@pytest.mark.parametrize(
    "scopes",
    [
        *(None, "", " ", "sessions:own ", " sessions:own", "sessions:own  agents:read", "sessions:own,agents:read"),
        *("SESSIONS:OWN", "admin", "sessions:own\tagents:read", "sessions:own admin"),
    ],
)
def test_malformed_unknown_or_missing_scopes_are_400(api: Api, scopes: str | None) -> None:
    """E-169: names separated by single spaces, at least one."""
    sent = api.with_headers(Nylorun_Subject="ada", Nylorun_Scopes=scopes)
    assert code(sent.get(ME)) == (400, "subject_invalid")


def test_scopes_without_a_subject_are_400(api: Api) -> None:
    """E-169: 400 subject_required."""
    assert code(api.get(ME, Nylorun_Scopes="sessions:own")) == (400, "subject_required")


def test_a_subject_header_sent_twice_is_refused(api: Api) -> None:
    """E-169: the server joins repeated headers, so the hook in front of it empties them and the door refuses."""

    class Sent:
        headers = [("HOST", "x"), ("NYLORUN-SUBJECT", "ada"), ("NYLORUN-SCOPES", "a"), ("NYLORUN-SUBJECT", "eve")]

    request = Sent()
    pre_request(None, request)
    assert request.headers == [("HOST", "x"), ("NYLORUN-SCOPES", "a"), ("NYLORUN-SUBJECT", "")]
    pre_request(None, request)
    assert request.headers[-1] == ("NYLORUN-SUBJECT", "")
    assert code(api.as_subject("", "sessions:own").get(ME)) == (400, "subject_invalid")


# --- words


OPEN, NEVER = "open", "never"
ASKED: dict[str, Any] = {
    "public": OPEN,
    "any": OPEN,
    "engine": OPEN,  # the route checks its own token
    "read": ["sessions:own", "environments:write"],
    "write": ["environments:write"],
    "publish": ["environments:write"],
    "secret": ["environments:write", "vaults:own"],
    "own": ["sessions:own"],
    "agents": ["agents:read", "sessions:own", "environments:write"],
    "app": ["tenant:settings"],
    "either": ["environments:write", "vaults:own", "sessions:own"],
}


@pytest.mark.parametrize("word", ASKED)
def test_each_word_asks_one_of_its_scopes_of_a_person(api: Api, word: str) -> None:
    """E-159, E-260: an application alone may everything; for a Subject it needs one of the route's scopes."""
    target = f"/v1/test/word/{word}"
    assert api.get(target).status == 200
    for scope in sorted(ALL_SCOPES):
        answer = api.as_subject("ada", scope).get(target)
        if ASKED[word] == OPEN or scope in ASKED[word]:
            assert answer.status == 200
        else:
            assert code(answer) == (403, "scope_required")
            assert answer.json["details"] == {"scopes": ASKED[word]}


def test_every_word_has_its_row_above() -> None:
    """E-159: no word without a rule."""
    assert set(WORDS) == set(ASKED) - {"either"}


def test_agents_may_be_changed_with_their_own_scope(api: Api) -> None:
    """E-159: agents:write counts under /v1/agents only."""
    writer = api.as_subject("ada", "agents:write")
    assert writer.get("/v1/agents/test/write").status == 200
    answer = api.as_subject("ada", "agents:read").get("/v1/agents/test/write")
    assert answer.json["details"] == {"scopes": ["environments:write", "agents:write"]}
    assert code(writer.get("/v1/test/word/write")) == (403, "scope_required")


@pytest.mark.parametrize("route", ["v1/tokens", "v1/access/policy", "v1/tenant/reset"])
def test_only_a_bare_application_may_mint_and_reset(route: str) -> None:
    """E-159: these look missing to everybody who acts for a person."""
    with pytest.raises(NotFound):
        Caller("application", "a", "ada", ALL_SCOPES).require((Word.APP,), route)
    Caller("application", "a", "ada", ALL_SCOPES).require((Word.APP,), "v1/tenant/sandbox")
    Caller("application", "a").require((Word.APP,), route)


def test_a_token_saves_no_manifest_and_sets_no_setting() -> None:
    """E-290: PUBLISH and APP routes look missing to a token, whatever its scopes."""
    token = Caller("token", "t", "ada", ALL_SCOPES)
    for word in (Word.PUBLISH, Word.APP, Word.ENGINE):
        with pytest.raises(NotFound):
            token.require((word,), "v1/x")
        assert not token.may(word)
    assert token.may(Word.WRITE)
    assert not token.reaches("demo")


def test_the_actor_is_the_subject_or_the_application(api: Api) -> None:
    """E-68: who is named in audit rows."""
    echo = "/v1/test/echo/demo"
    assert api.get(echo).json["caller"] == "app-1"
    assert api.as_subject("ada", "sessions:own").get(echo).json["caller"] == "ada"


def test_the_owner_guard_is_passed_by_its_owner_and_by_a_bare_application() -> None:
    """E-162: what a guard compares with outside a Session."""
    bare, ada = Caller("application", "a"), Caller("application", "a", "ada")
    assert [caller.owns(owner) for caller in (bare, ada) for owner in (None, "ada", "eve")] == [
        *(True, True, True),
        *(True, True, False),
    ]


def test_me_tells_what_the_caller_is(api: Api) -> None:
    """access §10: an application has all scopes and no subject."""
    me = api.get(ME).json
    assert set(me) == {"scopes", "agents", "via", "protocol"}
    assert (set(me["scopes"]), me["agents"], me["via"]) == (ALL_SCOPES, "*", "application")
    assert (me["protocol"]["min"], me["protocol"]["max"]) == (14, 16)


# --- the admin


@pytest.fixture
def operator(db: Any) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("op", password="x"))
    return client


@pytest.mark.django_db(transaction=True)
def test_an_operator_makes_a_key_and_sees_it_once(operator: Client) -> None:
    """E-159: the page that made the key shows it; no later page does."""
    page = operator.post("/admin/access/principal/add/", {"id": "billing"})
    assert page.status_code == 200
    assert "no-store" in page.headers["Cache-Control"]
    key = page.content.decode().split('<pre id="application-key">')[1].split("<")[0]
    assert Api({"Authorization": f"Bearer {key}"}).get(ME).status == 200
    digest = key_hash(key).hex()
    for later in ("/admin/access/principal/", "/admin/access/principal/billing/change/"):
        shown = operator.get(later).content.decode()
        assert "billing" in shown
        assert key not in shown
        assert digest not in shown


@pytest.mark.django_db(transaction=True)
def test_an_operator_revokes_and_neither_edits_nor_deletes(operator: Client) -> None:
    """E-159: the page calls the service; the row stays for audit."""
    key = run("create_application", "a").strip()
    operator.post("/admin/access/principal/", {"action": "revoke", "_selected_action": ["a"]})
    assert code(Api({"Authorization": f"Bearer {key}"}).get(ME)) == (401, "token_expired")
    assert operator.post("/admin/access/principal/a/delete/", {"post": "yes"}).status_code == 403
    operator.post("/admin/access/principal/a/change/", {"id": "b"})
    assert [row.id for row in Principal.objects.all()] == ["a"]


def test_the_admin_asks_for_a_login_and_for_its_csrf_token(db: Any) -> None:
    """E-292: its middleware stands around the admin alone, and an application key opens nothing there."""
    client = Client(enforce_csrf_checks=True)
    assert client.get("/admin/access/principal/").status_code == 302
    assert client.post("/admin/login/", {"username": "x", "password": "y"}).status_code == 403
    assert "csrftoken" not in client.get("/v1/me").cookies
    assert Api.for_application("b").get("/admin/access/principal/").status == 302
