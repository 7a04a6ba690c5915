"""Secrets of a fork: what is planned, what is sealed outside, what the one commit inserts."""

from __future__ import annotations

from typing import Any

import pytest

from environments.compute.fake import FakeDriver
from environments.models import Environment, Operation
from environments.services import fork_secrets, forks
from environments.services.operations import ATTEMPTS, Attempt
from nylorun.kernel.sealing import Unreadable
from tests.disks.helpers import LATER, asked, begun, events
from tests.factories import FAKE_PODS
from tests.support.client import Api
from tests.vault.conftest import ONE, TWO, Use
from tests.vault.helpers import BEARER, HEADERS, PLAIN, VARIABLE, opened, put, row, secret
from vault import keys
from vault.models import Secret, Vault, VaultAudit
from vault.services import copies, rotation, vaults
from workers.steps.operations import run_operation

BOX = "/v1/environment-manifests/box"
URL = "/v1/environments/demo"
FORK = f"{URL}/fork"
SLOT = {"type": "environment_variable"}
SITE = {"type": "bearer", "url": "https://api.example.org/v1"}
NETWORK = {"allow": ["api.example.org", "b.example.org"]}


def body(**slots: Any) -> dict[str, Any]:
    return {"kind": "virtual", **({"secrets": slots, "network": NETWORK} if slots else {})}


@pytest.fixture
def demo(api: Api) -> Api:
    """``demo`` from ``box@1`` without Slots, with three Secrets; ``box@2`` declares some otherwise."""
    api.put(BOX, body())
    assert api.put(URL, {"manifest": "box"}).status == 201
    for name, given in (("A", VARIABLE), ("KEY", BEARER), ("SITE", HEADERS)):
        put(api, name, given)
    return api


def declare(api: Api, **slots: Any) -> None:
    """Save the next version of ``box``."""
    assert api.put(BOX, body(**slots)).status == 201


def plan_of(api: Api, **more: Any) -> dict[str, list[str]]:
    answer = api.post(FORK, {"id": "demo-2", "disk": "empty", "dryRun": True, **more})
    assert answer.status == 200, answer.json
    return dict(answer.json["plan"]["secrets"])


def begun_fork(api: Api, **more: Any) -> Attempt:
    return begun(asked(api, FORK, {"id": "demo-2", "disk": "empty", **more}).id)


def made(attempt: Attempt) -> dict[str, list[str]]:
    """A worker made the fork; the Secrets of its answer."""
    forks.create(attempt, None, pods=FAKE_PODS, tenant="local")
    operation = Operation.objects.get(pk=attempt.operation_id)
    assert operation.state == "succeeded"
    assert operation.result is not None
    return dict(operation.result["plan"]["secrets"])


def test_a_fork_without_slots_carries_every_secret(demo: Api) -> None:
    """E-75, E-135, E-138, E-140: new id, data key and place; the same value; one audit row on either Vault."""
    wanted = {"copied": ["A", "KEY", "SITE"], "dropped": [], "missing": []}
    assert plan_of(demo) == wanted
    assert made(begun_fork(demo)) == wanted
    for name in ("A", "KEY", "SITE"):
        old, new = secret(name), secret(name, "demo-2")
        assert (new.type, new.binding, new.header_names) == (old.type, old.binding, old.header_names)
        for column in ("id", "vault_id", "nonce", "wrapped_dek", "ciphertext"):
            assert getattr(new, column) != getattr(old, column)
        lines = VaultAudit.objects.filter(action="copy", name=name).order_by("ord")
        assert [(line.environment_id, line.vault_id, line.credential_id, line.outcome) for line in lines] == [
            ("demo", old.vault_id, old.id, "copied"), ("demo-2", new.vault_id, new.id, "copied"),
        ]  # fmt: skip
        assert {line.actor for line in lines} == {"app-1"}
    assert opened("demo-2") == {"A": PLAIN}
    assert events()[-1][1]["secrets"] == 3
    assert "createdAt" in demo.get("/v1/environments/demo-2/secrets").json["secrets"][0]


def test_the_audit_of_a_fork_names_person_and_request(demo: Api) -> None:
    """E-68, E-75: the Subject, and the correlation id of the body, else that of the request."""
    ada = demo.as_subject("ada", "environments:write")
    for id, more, headers in (("one", {"requestId": "r-1"}, {}), ("two", {}, {"X-Request-Id": "x-1"})):
        ada.post(FORK, {"id": id, "disk": "empty", **more}, **LATER, **headers)
        run_operation(Operation.objects.get(state="queued").id)
        lines = VaultAudit.objects.filter(action="copy", name="A").order_by("-ord")[:2]
        assert {(line.actor, line.request_id) for line in lines} == {("ada", "r-1" if more else "x-1")}
        assert {line.environment_id for line in lines} == {"demo", id}


def test_a_worker_makes_the_fork_with_its_secrets(demo: Api, pods: FakeDriver) -> None:
    """E-75, E-135: the whole Operation; the values stand in none of its columns."""
    operation = asked(demo, FORK, {"id": "demo-2", "disk": "empty"})
    run_operation(operation.id)
    operation.refresh_from_db()
    assert operation.state == "succeeded", operation.error
    assert row("demo-2").has_secrets
    assert opened("demo-2") == {"A": PLAIN}
    columns = Operation.objects.filter(pk=operation.pk).values().get()
    assert PLAIN not in str(columns)
    answer = demo.get(f"/v1/operations/{operation.id}").json
    assert answer["result"]["plan"]["secrets"]["copied"] == ["A", "KEY", "SITE"]


def test_only_slots_with_an_equal_binding_are_copied(demo: Api) -> None:
    """E-76, E-135: another type, another binding and undeclared names are dropped; required ones are missing."""
    declare(demo, A=SLOT, KEY={**SITE, "url": "https://api.example.org/v2", "required": True},
            SITE={**SLOT, "required": True}, NEW={**SLOT, "required": True, "description": "d"})  # fmt: skip
    wanted = {"copied": ["A"], "dropped": ["KEY", "SITE"], "missing": ["KEY", "NEW", "SITE"]}
    assert plan_of(demo) == wanted
    assert made(begun_fork(demo)) == wanted
    assert list(Secret.objects.filter(vault__environment_uid=row("demo-2").uid).values_list("name", flat=True)) == ["A"]


def test_required_and_description_are_no_part_of_a_binding(demo: Api) -> None:
    """E-65, E-76."""
    declare(demo, KEY={**SITE, "required": True, "description": "d"})
    assert made(begun_fork(demo)) == {"copied": ["KEY"], "dropped": ["A", "SITE"], "missing": []}


def test_type_model_is_never_copied_or_planned(demo: Api) -> None:
    """E-76: nor reported."""
    Secret.objects.filter(name="A").update(type="model")
    wanted = {"copied": ["KEY", "SITE"], "dropped": [], "missing": []}
    assert plan_of(demo) == wanted == made(begun_fork(demo))


def test_secrets_none_opens_and_seals_nothing(demo: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-219: the Vault is made empty, and everything is dropped."""
    declare(demo, A={**SLOT, "required": True})
    monkeypatch.setattr(keys, "open_value", None)
    monkeypatch.setattr(keys, "seal", None)
    wanted = {"copied": [], "dropped": ["A", "KEY", "SITE"], "missing": ["A"]}
    assert plan_of(demo, secrets="none") == wanted
    assert made(begun_fork(demo, secrets="none")) == wanted
    assert Vault.objects.filter(environment_uid=row("demo-2").uid).count() == 1
    assert not VaultAudit.objects.filter(action__in=("copy", "use")).exists()


def test_what_was_written_since_it_was_sealed_is_dropped_never_copied_old(
    demo: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-75: a rotation and a delete between sealing and insert; what is untouched is copied."""
    sealed = fork_secrets.seal

    def seal_then_change(attempt: Attempt) -> Any:
        done = sealed(attempt)
        put(demo, "A", {**VARIABLE, "value": "new"})
        demo.delete(f"{URL}/secrets/KEY")
        return done

    monkeypatch.setattr(fork_secrets, "seal", seal_then_change)
    assert made(begun_fork(demo)) == {"copied": ["SITE"], "dropped": ["A", "KEY"], "missing": []}
    assert opened("demo-2") == {}


def test_a_secret_made_again_since_it_was_sealed_is_dropped(demo: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-75: the same name and value, another row."""
    sealed = fork_secrets.seal

    def seal_then_remake(attempt: Attempt) -> Any:
        done = sealed(attempt)
        demo.delete(f"{URL}/secrets/A")
        put(demo, "A", VARIABLE)
        return done

    monkeypatch.setattr(fork_secrets, "seal", seal_then_remake)
    assert made(begun_fork(demo))["dropped"] == ["A"]


def test_a_rotation_of_the_keyring_between_drops_nothing(demo: Api, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-75, E-273: it changes no nonce, and the copies open with the new ring."""
    use(ONE)
    for name, given in (("A", VARIABLE), ("KEY", BEARER), ("SITE", HEADERS)):
        put(demo, name, given)
    sealed = fork_secrets.seal

    def seal_then_rotate(attempt: Attempt) -> Any:
        done = sealed(attempt)
        use(TWO, ONE)
        list(rotation.rewrap_all(10))
        return done

    monkeypatch.setattr(fork_secrets, "seal", seal_then_rotate)
    assert made(begun_fork(demo))["copied"] == ["A", "KEY", "SITE"]
    assert opened("demo-2") == {"A": PLAIN}


def test_a_secret_that_cannot_be_read_stops_the_fork_and_leaves_nothing(demo: Api) -> None:
    """E-75: it is tried again by the Operation; no half fork is made."""
    attempt = begun_fork(demo)
    Secret.objects.filter(name="A").update(kek_id="0" * 64)
    with pytest.raises(Unreadable):
        forks.create(attempt, None, pods=FAKE_PODS, tenant="local")
    assert not Environment.objects.filter(pk="demo-2").exists()
    assert not VaultAudit.objects.filter(action="copy").exists()


def test_a_fork_whose_secret_stays_unreadable_fails_and_says_so(demo: Api, pods: FakeDriver) -> None:
    """E-75, E-227: after the last attempt with the error itself, not as a disk that could not be copied."""
    operation = asked(demo, FORK, {"id": "demo-2", "disk": "empty"})
    Secret.objects.filter(name="A").update(kek_id="0" * 64)
    for attempt in range(1, ATTEMPTS + 1):
        run_operation(operation.id)
        operation.refresh_from_db()
        assert (operation.state, operation.attempt) == ("queued" if attempt < ATTEMPTS else "failed", attempt)
        Operation.objects.update(due_at=None)
    error = demo.get(f"/v1/operations/{operation.id}").json["error"]
    assert (error["code"], error["message"]) == ("service_unavailable", "The secret could not be read.")
    assert not Environment.objects.filter(pk="demo-2").exists()


def test_a_later_attempt_uses_the_vault_id_that_was_drawn(demo: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-75: the id stands in the Operation; the copies do not."""
    attempt = begun_fork(demo)
    first = fork_secrets.seal(attempt)
    assert first is not None
    data = Operation.objects.get(pk=attempt.operation_id).data
    assert data["vaultId"] == str(first.vault_id)
    assert PLAIN not in str(data)
    again = fork_secrets.seal(Attempt(**{name: getattr(attempt, name) for name in attempt.__slots__} | {"data": data}))
    assert again is not None
    assert again.vault_id == first.vault_id


def test_copies_hide_what_they_hold(demo: Api) -> None:
    """E-70: sealed values only, and not even those in a repr."""
    done = copies.seal_copies(row().uid, vaults.draw_vault_id(), None)
    assert "ciphertext" not in repr(done)
    assert PLAIN not in repr(done)


def test_the_hosts_secrets_are_reached_through_no_environment(demo: Api) -> None:
    """E-66, E-76: never listed, copied, opened or counted."""
    host = Vault.objects.create(environment_uid=None, created_at=row().created_at)
    kept = secret("A")
    Secret.objects.filter(pk=kept.pk).update(vault=host, name="PROVIDER")
    names = [one["name"] for one in demo.get(f"{URL}/secrets").json["secrets"]]
    assert names == ["KEY", "SITE"]
    assert plan_of(demo)["copied"] == ["KEY", "SITE"]
    assert opened() == {}
    demo.delete(f"{URL}?force=true")
    assert list(Secret.objects.values_list("name", flat=True)) == ["PROVIDER"]
