"""Idempotency keys of Secret writes and deletes: one answer, one write, no value kept."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from environments.models import Environment
from nylorun import config
from nylorun.db.tx import database_now
from nylorun.kernel.canonical import canonical
from nylorun.record import replay
from nylorun.record.models import Idempotency
from tests.support.client import Answer, Api
from tests.vault.conftest import ONE, TWO, Use
from tests.vault.helpers import BEARER, HEADERS, PLAIN, VARIABLE
from vault.models import Secret, VaultAudit
from workers.steps import sweeps

ENVIRONMENT = "/v1/environments/demo"
SECRETS = f"{ENVIRONMENT}/secrets"
KEY = {"Idempotency-Key": "k-1"}


def replayed(answer: Answer) -> bool:
    return answer.headers.get("Idempotency-Replayed") == "true"


def actions() -> list[str]:
    return list(VaultAudit.objects.order_by("ord").values_list("action", flat=True))


def test_a_repeated_write_answers_what_the_first_did(demo: Api) -> None:
    """E-72, E-233: status, body and Location; nothing runs, nothing is counted as use."""
    first = demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY)
    moment = database_now() - timedelta(days=1)
    Environment.objects.update(last_used_at=moment)
    again = demo.put(f"{SECRETS}/NAME", {**VARIABLE, "requestId": "another"}, **KEY)
    assert (again.status, again.body, again.headers["Location"]) == (201, first.body, f"{SECRETS}/NAME")
    assert (replayed(first), replayed(again)) == (False, True)
    assert (actions(), Environment.objects.get().last_used_at) == (["create"], moment)


def test_header_and_member_are_one_key(demo: Api) -> None:
    """E-72: ``idempotencyKey`` in the body is the same thing; both and different is 400."""
    demo.put(f"{SECRETS}/NAME", {**VARIABLE, "idempotencyKey": "k-1"})
    assert replayed(demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY))
    answer = demo.put(f"{SECRETS}/NAME", {**VARIABLE, "idempotencyKey": "k-2"}, **KEY)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert demo.put(f"{SECRETS}/NAME", VARIABLE, **{"Idempotency-Key": "a b"}).status == 400


@pytest.mark.parametrize(
    "body", [{**VARIABLE, "value": "other"}, BEARER, {**VARIABLE, "value": ""}], ids=["value", "type", "empty"]
)
def test_another_body_under_a_key_is_a_conflict(demo: Api, body: dict[str, Any]) -> None:
    """E-72: another value too, though no value is kept."""
    demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY)
    answer = demo.put(f"{SECRETS}/NAME", body, **KEY)
    assert (answer.status, answer.json["code"]) == (409, "idempotency_conflict")
    assert actions() == ["create"]


def test_a_refusal_is_not_kept(demo: Api) -> None:
    """E-72: a retry of a refused write is decided again."""
    demo.put(f"{SECRETS}/NAME", BEARER)
    assert demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY).status == 409
    assert not Idempotency.objects.exists()
    demo.delete(f"{SECRETS}/NAME")
    assert demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY).status == 201


def test_a_repeated_delete_says_what_the_first_did(demo: Api) -> None:
    """E-72: even when a Secret of the name was made meanwhile."""
    demo.put(f"{SECRETS}/NAME", VARIABLE)
    demo.delete(f"{SECRETS}/NAME", **KEY)
    demo.put(f"{SECRETS}/NAME", VARIABLE)
    again = demo.delete(f"{SECRETS}/NAME", **KEY)
    assert (again.json, replayed(again)) == ({"name": "NAME", "deleted": True}, True)
    assert Secret.objects.count() == 1


def test_a_key_belongs_to_route_caller_and_path(demo: Api) -> None:
    """E-72: the same key elsewhere is another request."""
    demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY)
    for other in (
        demo.put(f"{SECRETS}/OTHER", VARIABLE, **KEY),
        demo.as_subject("ada", "environments:write").put(f"{SECRETS}/NAME", VARIABLE, **KEY),
        demo.delete(f"{SECRETS}/NAME", **KEY),
    ):
        assert other.status in (200, 201)
        assert not replayed(other)
    ids = sorted(Idempotency.objects.values_list("id", flat=True))
    assert ids[1] == f"secret.put:application:ada:{SECRETS}/NAME:k-1"
    assert ids[0] == f"secret.delete:application:app-1:{SECRETS}/NAME:k-1"


def test_a_repeat_is_answered_after_the_environment_has_gone(demo: Api) -> None:
    """E-72, E-78: the row survives; nothing runs."""
    demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY)
    demo.delete(f"{ENVIRONMENT}?force=true")
    assert demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY).status == 201
    assert demo.put(f"{SECRETS}/NAME", VARIABLE).status == 404


def test_rows_hold_no_value_and_nothing_it_could_be_guessed_with(demo: Api) -> None:
    """E-72, E-293: the answer is sealed, the hash is keyed: a guess cannot be tried without the keyring."""
    bodies: list[dict[str, Any]] = [VARIABLE, HEADERS]
    for number, body in enumerate(bodies):
        demo.put(f"{SECRETS}/N{number}", {**body, "idempotencyKey": f"k-{number}"})
    for row in Idempotency.objects.all():
        assert row.response is not None
        stored = f"{row.id} {row.body_hash} {bytes(row.response)!r}"
        assert PLAIN not in stored
        assert b"createdAt" not in bytes(row.response)
        for body, plain in itertools.product(bodies, (b"", config.current().tenant_id.encode())):
            for text in (canonical(body), json.dumps(body), PLAIN):
                guesses = (hashlib.sha256(text.encode()), hmac.new(plain, text.encode(), "sha256"))
                assert all(guess.hexdigest() not in row.body_hash for guess in guesses)


def test_the_hash_is_an_hmac_under_a_key_of_its_own(use: Use, demo: Api) -> None:
    """E-72: derived from the keyring and the Tenant, apart from what wraps data keys."""
    use(ONE)
    demo.put(f"{SECRETS}/NAME", {**VARIABLE, "requestId": "r"}, **KEY)
    info = f"nylorun/fingerprint/1/{config.current().tenant_id}".encode()
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(ONE)
    wanted = hmac.new(key, canonical(VARIABLE).encode(), "sha256").hexdigest()
    assert Idempotency.objects.get().body_hash == f"hmac-sha256:{wanted}"


def test_a_repeat_is_known_after_a_change_of_keys(use: Use, demo: Api) -> None:
    """E-72, E-273: the hash is compared with each key of the ring."""
    use(ONE)
    first = demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY)
    use(TWO, ONE)
    again = demo.put(f"{SECRETS}/NAME", VARIABLE, **KEY)
    assert (again.body, replayed(again)) == (first.body, True)
    assert demo.put(f"{SECRETS}/NAME", {**VARIABLE, "value": "x"}, **KEY).status == 409


def test_rows_are_kept_for_a_day(demo: Api) -> None:
    """E-233: the sweep removes older ones, in batches; a key may be used again then."""
    demo.put(f"{SECRETS}/OLD", VARIABLE, **KEY)
    Idempotency.objects.update(created_at=database_now() - replay.KEEP - timedelta(seconds=1))
    demo.put(f"{SECRETS}/NEW", VARIABLE, **KEY)
    assert sweeps.old_answers in sweeps.STEPS
    sweeps.old_answers()
    (kept,) = Idempotency.objects.values_list("id", flat=True)
    assert "/NEW:" in kept
    assert demo.put(f"{SECRETS}/OLD", VARIABLE, **KEY).status == 200
