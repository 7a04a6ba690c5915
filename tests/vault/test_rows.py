"""Rows of the vault: what the database itself refuses, and what goes with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, IntegrityError, connection
from django.db.transaction import atomic  # noqa: TID251 a savepoint around a statement that fails

from environments.compute.fake import FakeDriver
from environments.models import Environment
from nylorun.db.tx import database_now
from tests.support.client import Api
from tests.vault.helpers import BEARER, HEADERS, HOST, PLAIN, VARIABLE, permitted, put, row, secret
from vault.models import Secret, Vault, VaultAudit

URL = "/v1/environments/demo"


def copy_of(kept: Secret, **changed: Any) -> Secret:
    """The same row with other columns."""
    columns = {field.attname: getattr(kept, field.attname) for field in Secret._meta.concrete_fields}
    return Secret(**{**columns, "id": uuid4(), "name": "OTHER", **changed})


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(IntegrityError), atomic():
        act()
        connection.check_constraints()


def test_what_an_insert_fails_on(demo: Api) -> None:
    """E-201, E-66: duplicate id, unknown Vault, second Vault of one Environment or of the host, a used name."""
    put(demo, "NAME", VARIABLE)
    kept, now = secret(), database_now()
    for bad in (
        copy_of(kept, id=kept.id),
        copy_of(kept, name="NAME"),
        copy_of(kept, vault_id=uuid4()),
        copy_of(kept, type="other"),
        copy_of(kept, nonce=b"short"),
        copy_of(kept, wrapped_dek=b"short"),
        copy_of(kept, ciphertext=b"short"),
        copy_of(kept, kek_id="short"),
        copy_of(kept, header_names=["x"]),
        copy_of(kept, type="headers"),
    ):
        refused(lambda bad=bad: bad.save(force_insert=True))  # type: ignore[misc]
    copy_of(kept).save(force_insert=True)
    Vault.objects.create(environment_uid=None, created_at=now)
    refused(lambda: Vault.objects.create(environment_uid=None, created_at=now))
    refused(lambda: Vault.objects.create(environment_uid=kept.vault.environment_uid, created_at=now))
    refused(lambda: Vault.objects.create(environment_uid=uuid4(), created_at=now))


def test_a_secret_is_looked_for_in_its_vault(demo: Api) -> None:
    """E-199: the same id asked for through another Environment is not there."""
    put(demo, "NAME", VARIABLE)
    demo.put("/v1/environments/other", {"kind": "none"})
    rows = Secret.objects.of(row("other").uid)
    assert not rows.filter(pk=secret().pk).exists()
    assert Secret.objects.of(row().uid).filter(pk=secret().pk).exists()
    assert demo.delete("/v1/environments/other/secrets/NAME").json["deleted"] is False


def test_vault_and_secrets_go_with_the_row_by_foreign_key(demo: Api) -> None:
    """E-67: one statement on the Environment's table, no code of ours."""
    put(demo, "NAME", VARIABLE)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM environments_environment WHERE id = 'demo'")
    assert (Vault.objects.count(), Secret.objects.count()) == (0, 0)


@pytest.mark.parametrize("kind", ["none", "virtual", "pod"])
@pytest.mark.parametrize("query", ["", "?force=true"])
def test_a_delete_removes_vault_and_secrets_at_once(api: Api, pods: FakeDriver, kind: str, query: str) -> None:
    """E-37, E-67, E-78: a pod's row stays, its Secrets do not; the audit stays."""
    api.put(URL, {"kind": kind})
    put(api, "NAME", VARIABLE)
    put(api, "KEY", BEARER)
    pods.silent = True
    assert api.delete(f"{URL}{query}").json["deleted"] is True
    assert (Vault.objects.count(), Secret.objects.count()) == (0, 0)
    assert Environment.objects.exists() is (kind == "pod")
    assert list(VaultAudit.objects.order_by("ord").values_list("name", flat=True)) == ["NAME", "KEY"]
    assert api.get(f"{URL}/secrets").status == 404


def test_audit_rows_are_never_changed_or_deleted(demo: Api) -> None:
    """E-78: the database refuses, whoever asks."""
    put(demo, "NAME", VARIABLE)
    for act in (lambda: VaultAudit.objects.update(actor="x"), lambda: VaultAudit.objects.all().delete()):
        with pytest.raises(DatabaseError, match="never changed or deleted"), atomic():
            act()
    assert VaultAudit.objects.get().actor == "app-1"


def test_the_audit_has_a_fixed_list_of_columns_and_none_for_a_value(demo: Api) -> None:
    """E-70, E-68: nothing that was sent stands in it but names and correlation ids."""
    for name, body in (("A", VARIABLE), ("B", BEARER), ("C", HEADERS), ("D", HOST)):
        put(demo, name, body)
        put(demo, name, body)
    permitted()
    demo.delete(f"{URL}/secrets/D")
    assert [field.name for field in VaultAudit._meta.concrete_fields] == [
        "ord", "id", "at", "actor", "action", "vault_id", "credential_id", "name", "environment_id", "session_id",
        "target", "request_id", "outcome",
    ]  # fmt: skip
    text = str(list(VaultAudit.objects.values_list()))
    for value in (PLAIN, "api.example.org", "X-Api-Key", "x-api-key"):
        assert value not in text


def test_no_column_holds_a_value_in_clear(demo: Api) -> None:
    """E-70, E-69: every text and byte column of every table of the database, after writes, uses and refusals."""
    for name, body in (("A", VARIABLE), ("B", BEARER), ("C", HEADERS), ("D", HOST)):
        put(demo, name, {**body, "idempotencyKey": f"k-{name}"})
    demo.put(f"{URL}/secrets/A", {**BEARER, "requestId": "r"})
    permitted()
    needles = [PLAIN, "czNjcmV0LXZhbHVl", PLAIN.encode().hex()]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
            " AND data_type IN ('text', 'jsonb', 'json', 'bytea', 'character varying')"
        )
        columns = cursor.fetchall()
        assert ("vault_secret", "ciphertext") in columns
        for table, column in columns:
            cursor.execute(f'SELECT "{column}"::text FROM "{table}"')
            text = "\n".join(str(found) for (found,) in cursor.fetchall())
            assert not [needle for needle in needles if needle in text], (table, column)
