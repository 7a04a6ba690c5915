"""Operators' pages of the vault: names, types and audit; never a value, sealed or not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.support.client import Api
from tests.vault.conftest import ONE, TWO, Use
from tests.vault.helpers import BEARER, HEADERS, HOST, PLAIN, VARIABLE, permitted, put, secret
from vault.models import Secret, Vault, VaultAudit

ADMIN = "/admin/vault"


@pytest.fixture
def operator(db: Any) -> Client:
    """A signed-in superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("op", password="x"))
    return client


@pytest.fixture
def filled(use: Use, demo: Api) -> Api:
    """One Secret of each type, two of an older key, and their audit."""
    use(ONE)
    for name, body in (("A", VARIABLE), ("B", BEARER), ("C", HEADERS), ("D", HOST)):
        put(demo, name, body)
    use(TWO, ONE)
    put(demo, "A", VARIABLE)
    put(demo, "B", BEARER)
    permitted()
    return demo


def all_keys() -> dict[str, list[Any]]:
    """The keys of every row, by page."""
    return {
        "vault": list(Vault.objects.values_list("pk", flat=True)),
        "secret": list(Secret.objects.values_list("pk", flat=True)),
        "vaultaudit": list(VaultAudit.objects.values_list("pk", flat=True)),
    }


def pages(operator: Client) -> dict[str, str]:
    """Every list, filter, search and form."""
    urls = ["/admin/"]
    for model, keys in all_keys().items():
        urls += [f"{ADMIN}/{model}/", f"{ADMIN}/{model}/?q=A", f"{ADMIN}/{model}/{keys[0]}/history/"]
        urls += [f"{ADMIN}/{model}/{key}/change/" for key in keys]
    urls += [f"{ADMIN}/secret/?rotate=yes", f"{ADMIN}/secret/?rotate=no", f"{ADMIN}/secret/?type=bearer"]
    found = {url: operator.get(url) for url in urls}
    assert {answer.status_code for answer in found.values()} == {200}
    return {url: answer.content.decode() for url, answer in found.items()}


def test_no_page_shows_a_value_or_anything_sealed(filled: Api, operator: Client) -> None:
    """E-70: values, ciphertexts, nonces, wrapped keys in any form, on any page."""
    needles = [PLAIN]
    for row in Secret.objects.all():
        for data in (bytes(row.ciphertext), bytes(row.nonce), bytes(row.wrapped_dek)):
            needles += [data.hex(), repr(data)[2:-1][:12]]
    for url, page in pages(operator).items():
        assert not [needle for needle in needles if needle in page], url
        assert "wrapped_dek" not in page
        assert "ciphertext" not in page


def test_the_sealed_columns_are_not_even_read(filled: Api, operator: Client) -> None:
    """E-70: no query of a page names them."""
    kept = secret("A")
    with CaptureQueriesContext(connection) as queries:
        for path in ("secret/", f"secret/{kept.pk}/change/", "vault/", f"vault/{kept.vault_id}/change/"):
            assert operator.get(f"{ADMIN}/{path}").status_code == 200
    asked = " ".join(query["sql"] for query in queries)
    assert "header_names" in asked
    assert not {"ciphertext", "wrapped_dek", "nonce"}.intersection(re.findall(r"\w+", asked))


def test_operators_see_names_types_and_which_need_a_rotation(filled: Api, operator: Client) -> None:
    """E-273, E-70: set, type, and whose key is not the active one."""
    page = operator.get(f"{ADMIN}/vault/{secret('A').vault_id}/change/").content.decode()
    lines = re.findall(r"([A-D]) (\w+) (\(rotate needed\))?<br>", page)
    assert lines == [
        ("A", "environment_variable", ""), ("B", "bearer", ""),
        ("C", "headers", "(rotate needed)"), ("D", "environment_secret", "(rotate needed)"),
    ]  # fmt: skip
    waiting = operator.get(f"{ADMIN}/secret/?rotate=yes").content.decode()
    assert re.findall(r'change/\?[^"]*">([A-D])<', waiting) == ["D", "C"]


def test_nothing_is_edited_and_the_audit_is_read_only(filled: Api, operator: Client) -> None:
    """E-271, E-78: no form saves, adds or deletes."""
    for model, keys in all_keys().items():
        key = keys[0]
        for path in ("add/", f"{key}/delete/"):
            assert operator.get(f"{ADMIN}/{model}/{path}").status_code == 403
        assert operator.post(f"{ADMIN}/{model}/{key}/change/", {"name": "X"}).status_code == 403
        assert "delete_selected" not in operator.get(f"{ADMIN}/{model}/").content.decode()
