"""Several writers of one Vault at one moment: real connections, no waiting by the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from environments.commands import DeleteSecret, WriteSecret
from environments.models import Environment
from environments.services import secrets
from environments.services.delete import delete_environment
from environments.services.secrets import Answered, delete_secret, put_secret
from nylorun.access import keyring
from nylorun.kernel.errors import ApiError, NotFound, ServiceUnavailable
from nylorun.record.models import Idempotency
from nylorun.record.replay import key_of, keyed_hashes
from tests.factories import CALLER, environment
from tests.races.test_environments import at_once
from tests.vault.helpers import opened
from vault.bodies import Given
from vault.errors import CredentialConflict
from vault.models import Secret, Vault, VaultAudit
from vault.services import rotation, write
from vault.values import Value

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def demo(transactional_db: Any) -> None:
    environment("demo", kind="none")


def given(value: str, **binding: Any) -> Given:
    bound = binding or {"type": "environment_variable"}
    text = Value.of_text(value)
    return Given(bound, text, None, None, Value({**bound, "value": value}))


def put(value: str, name: str = "NAME", key: str | None = None, **binding: Any) -> Callable[[], Answered]:
    body = given(value, **binding)
    hashes = keyed_hashes(body.compared.plaintext(), keyring.current())
    asked = None if key is None else key_of("secret.put", CALLER, "/path", key, hashes)
    return lambda: put_secret(WriteSecret("demo", name, body), caller=CALLER, key=asked)


def remove(name: str = "NAME") -> Callable[[], Answered]:
    return lambda: delete_secret(DeleteSecret("demo", name), caller=CALLER, key=None)


def actions() -> Counter[str]:
    return Counter(VaultAudit.objects.values_list("action", flat=True))


def test_parallel_writes_of_one_name_make_one_row_and_every_one_is_counted() -> None:
    """E-66, E-71: one is created, the others rotate; the last value stands and opens."""
    results = at_once([put(f"value-{number}") for number in range(4)])
    done = [result for result in results if isinstance(result, Answered)]
    assert all(isinstance(result, Answered | ServiceUnavailable) for result in results)
    assert Counter(result.status for result in done) == {201: 1, 200: len(done) - 1}
    assert actions() == Counter({"create": 1, "rotate": len(done) - 1})
    assert opened()["NAME"].startswith("value-")


def test_a_write_whose_row_changed_while_it_was_sealed_is_sealed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-69, E-71: made, rotated and removed in between; what is kept always opens."""
    changes = iter([put("first"), put("second"), remove()])
    prepare = write.prepare

    def late(*args: Any) -> write.Prepared:
        prepared = prepare(*args)
        if (change := next(changes, None)) is not None:
            monkeypatch.setattr(write, "prepare", prepare)
            change()
            monkeypatch.setattr(write, "prepare", late)
        return prepared

    monkeypatch.setattr(write, "prepare", late)
    assert put("mine")().status == 201
    assert opened() == {"NAME": "mine"}
    written = VaultAudit.objects.exclude(action="use").order_by("ord")
    assert list(written.values_list("action", flat=True)) == ["create", "rotate", "delete", "create"]


def test_a_write_that_never_finds_its_row_still_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-71: a bounded number of times, then 503; nothing of it is kept."""
    prepare, tries = write.prepare, []

    def late(*args: Any) -> write.Prepared:
        prepared = prepare(*args)
        tries.append(1)
        monkeypatch.setattr(write, "prepare", prepare)
        put(f"other-{len(tries)}")()
        monkeypatch.setattr(write, "prepare", late)
        return prepared

    monkeypatch.setattr(write, "prepare", late)
    with pytest.raises(ServiceUnavailable):
        put("mine")()
    assert len(tries) == secrets.ATTEMPTS
    assert opened() == {"NAME": f"other-{secrets.ATTEMPTS}"}


def test_write_against_delete_of_the_secret_ends_in_one_of_both_orders() -> None:
    """E-66: the audit tells which; never half a row."""
    for _ in range(8):
        at_once([put("value"), remove()])
        last = VaultAudit.objects.order_by("-ord")[0].action
        assert Secret.objects.exists() is (last != "delete")
        remove()()


def test_write_against_delete_of_the_environment_leaves_no_secret() -> None:
    """E-67: written before, or refused as missing; a Vault made again is another one."""
    for number in range(6):
        results = at_once([put("value"), lambda: delete_environment("demo", force=True)])
        assert isinstance(results[0], Answered | NotFound)
        assert results[1] is True
        assert (Secret.objects.count(), Vault.objects.count(), Environment.objects.count()) == (0, 0, 0), number
        environment("demo", kind="none")


def test_a_write_prepared_for_a_row_that_was_made_again_is_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-66: the new Vault's id is part of the place."""
    prepare = write.prepare

    def late(*args: Any) -> write.Prepared:
        prepared = prepare(*args)
        monkeypatch.setattr(write, "prepare", prepare)
        delete_environment("demo", force=True)
        environment("demo", kind="none")
        return prepared

    monkeypatch.setattr(write, "prepare", late)
    assert put("value")().status == 201
    assert opened() == {"NAME": "value"}


def test_of_two_that_clash_one_is_kept() -> None:
    """E-74: decided under the Vault's lock."""
    for _ in range(6):
        url = {"type": "bearer", "url": "https://api.example.org"}
        results = at_once([put("a", "A", **url), put("b", "B", **url)])
        assert sum(isinstance(result, CredentialConflict) for result in results) == 1
        assert Secret.objects.count() == 1
        for name in ("A", "B"):
            remove(name)()


def test_requests_with_one_key_write_once() -> None:
    """E-72, E-297: the second waits for the first one's commit and answers from its row."""
    results = at_once([put("value", key="k") for _ in range(6)])
    assert Counter((result.status, result.replayed) for result in results) == {(201, False): 1, (201, True): 5}
    assert len({str(result.body) for result in results}) == 1
    assert (actions(), Idempotency.objects.count()) == (Counter({"create": 1}), 1)


def test_requests_with_one_key_and_other_bodies_write_one_of_them() -> None:
    """E-72: the others are told."""
    results = at_once([put(f"value-{number}", key="k") for number in range(4)])
    codes = Counter(result.code if isinstance(result, ApiError) else result.status for result in results)
    assert codes == {201: 1, "idempotency_conflict": 3}
    assert Secret.objects.count() == 1


def test_a_rotation_of_the_keyring_beside_writers_leaves_every_secret_readable() -> None:
    """E-273: rows of another key are met while they are written."""
    names = [f"N{number}" for number in range(4)]
    for name in names:
        put("old", name)()
    ring = keyring.current()
    kek, other = ring.active, "f" * 64
    Secret.objects.update(kek_id=other)
    ring._wrapping[other] = ring._wrapping[kek]  # the same key under a second name
    try:
        results = at_once([lambda: list(rotation.rewrap_all(1)), *(put("new", name) for name in names)])
    finally:
        del ring._wrapping[other]
    assert not [result for result in results if isinstance(result, Exception)]
    assert opened() == dict.fromkeys(names, "new")
    assert set(Secret.objects.values_list("kek_id", flat=True)) == {kek}
