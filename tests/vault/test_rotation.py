"""``manage.py rotate_keyring``: everything sealed is wrapped again, row by row, whatever happens in between."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from nylorun.access import keyring, signing
from nylorun.access.models import KeyringCanary, SigningKey
from nylorun.db.tx import database_now
from nylorun.kernel.sealing import HEAD, Keyring
from nylorun.record.models import Idempotency
from tests.support.client import Api
from tests.vault.conftest import ONE, TWO, Use
from tests.vault.helpers import BEARER, HEADERS, HOST, PLAIN, VARIABLE, opened, put
from vault.models import Secret
from vault.services import rotation

OLD, NEW = hashlib.sha256(ONE).hexdigest(), hashlib.sha256(TWO).hexdigest()
URL = "/v1/environments/demo"


def rotated(*options: str) -> str:
    out = StringIO()
    call_command("rotate_keyring", *options, stdout=out)
    return out.getvalue()


@pytest.fixture
def sealed(use: Use, demo: Api) -> Api:
    """One of everything that is sealed, with the old key."""
    use(ONE)
    KeyringCanary.objects.all().delete()
    SigningKey.objects.all().delete()
    with connection.cursor() as cursor:
        assert keyring.canary_fault(cursor) is None
    for name, body in (("A", VARIABLE), ("B", BEARER), ("C", HEADERS), ("D", HOST)):
        put(demo, name, {**body, "idempotencyKey": f"k-{name}"})
    signing.mint(signing.HOST, "demo", {}, ttl=timedelta(minutes=1), now=database_now())
    return demo


def test_everything_sealed_is_wrapped_by_the_active_key_and_stays_as_it_is(sealed: Api, use: Use) -> None:
    """E-273: ciphertexts and nonces stay; afterwards the old key may leave the ring."""
    before = {row.pk: (bytes(row.nonce), bytes(row.ciphertext), row.rotated_at) for row in Secret.objects.all()}
    use(TWO, ONE)
    shown = rotated()
    assert (
        f"in use: {NEW} (active): access_keyring_canary 1, access_signing_key 1, record_idempotency 4, vault_secret 4"
        in shown
    )
    assert OLD not in shown
    assert before == {row.pk: (bytes(row.nonce), bytes(row.ciphertext), row.rotated_at) for row in Secret.objects.all()}
    use(TWO)
    assert opened() == {"A": PLAIN}
    answer = sealed.put(f"{URL}/secrets/B", {**BEARER, "idempotencyKey": "k-B"})
    assert answer.status == 409, "the hash of the body was made with the key that is gone"
    with connection.cursor() as cursor:
        assert keyring.canary_fault(cursor) is None
    key = SigningKey.objects.get()
    assert keyring.current().open_sealed(bytes(key.sealed_private), {"table": "access_signing_key", "id": key.kid})


def test_a_run_that_is_interrupted_goes_on_where_it_stopped(
    sealed: Api, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-273: each row is a commit of its own; every row opens at every moment."""
    use(TWO, ONE)
    rewrap = Keyring.rewrap
    seen: list[object] = []

    def dies(self: Keyring, blob: object) -> object:
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(blob)
        return rewrap(self, blob)  # type: ignore[arg-type]

    monkeypatch.setattr(Keyring, "rewrap", dies)
    with pytest.raises(KeyboardInterrupt):
        rotated("--batch", "2")
    monkeypatch.setattr(Keyring, "rewrap", rewrap)
    assert Secret.objects.filter(kek_id=NEW).count() == 3
    assert opened() == {"A": PLAIN}
    shown = rotated("--batch", "2")
    assert "vault_secret: 1 rewrapped" in shown
    assert "record_idempotency: 2 rewrapped\nrecord_idempotency: 4 rewrapped" in shown
    assert OLD not in shown
    assert rotated().count("rewrapped") == 0


def test_a_row_that_no_key_opens_is_left_and_told(sealed: Api, use: Use) -> None:
    """E-273: it does not stop the others; the list says which key is missing."""
    use(TWO)
    put(sealed, "E", {**VARIABLE, "value": "new"})
    use(ONE)
    with pytest.raises(CommandError, match="1 rows could not be read"):
        rotated()
    shown = rotation.kek_ids_in_use()
    assert (shown[NEW]["vault_secret"], shown[OLD]["vault_secret"]) == (1, 4)


def test_a_row_written_meanwhile_is_left_to_its_writer(sealed: Api, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-273: compared with what was read, so a new value is never given an old key."""
    use(TWO, ONE)
    rewrap = Keyring.rewrap
    written: list[bool] = []

    def rewrap_late(self: Keyring, blob: object) -> object:
        if not written:
            written.append(True)
            for name, body in (("A", VARIABLE), ("B", BEARER), ("C", HEADERS), ("D", HOST)):
                put(sealed, name, body)
        return rewrap(self, blob)  # type: ignore[arg-type]

    monkeypatch.setattr(Keyring, "rewrap", rewrap_late)
    assert "vault_secret: 0 rewrapped" in rotated()
    assert opened() == {"A": PLAIN}


def test_every_byte_column_is_rotated_or_known_to_hold_nothing_sealed(db: None) -> None:
    """E-273, E-293: a new sealed column must be added to the rotation."""
    rotated_columns = {
        (place.table, place.column) for place in rotation.PLACES if isinstance(place, rotation.BlobPlace)
    }
    known = {
        ("access_principal", "token_hash"),
        *(("vault_secret", name) for name in ("nonce", "wrapped_dek", "ciphertext")),
    }
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE table_schema = 'public' AND data_type = 'bytea'"
        )
        assert set(cursor.fetchall()) == rotated_columns | known


def test_a_bad_batch_and_a_bad_ring_are_refused(db: None, use: Use) -> None:
    """E-273."""
    with pytest.raises(CommandError, match="--batch"):
        rotated("--batch", "0")
    use()
    with pytest.raises(CommandError, match="NYLORUN_KEYRING"):
        rotated()


def test_stored_answers_still_open_after_the_rotation(sealed: Api, use: Use) -> None:
    """E-273, E-72: a repeat is answered while the ring holds the key its body was hashed with."""
    use(TWO, ONE)
    rotated()
    assert Idempotency.objects.count() == 4
    answer = sealed.put(f"{URL}/secrets/B", {**BEARER, "idempotencyKey": "k-B"})
    assert (answer.status, answer.headers["Idempotency-Replayed"]) == (201, "true")


def test_a_batch_reads_no_ciphertext(sealed: Api, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-273: a batch of large answers costs no more than one of small ones, and they stay as they are."""
    place = {"table": "record_idempotency", "id": "large"}
    answer = b"x" * (2 << 20)
    stored = bytes(keyring.current().seal(answer, place))
    Idempotency.objects.create(id="large", body_hash="h", status=200, response=stored, created_at=database_now())
    use(TWO, ONE)
    sizes: list[int] = []
    read, write = rotation._rows, rotation._changed

    def measured(sql: str, values: Any) -> Any:
        found = read(sql, values)
        sizes.extend(len(cell) for row in found for cell in row if isinstance(cell, bytes | memoryview | str))
        return found

    def sent(sql: str, values: Any) -> bool:
        sizes.extend(len(value) for value in values)
        return write(sql, values)

    monkeypatch.setattr(rotation, "_rows", measured)
    monkeypatch.setattr(rotation, "_changed", sent)
    assert OLD not in rotated()
    assert sizes
    assert max(sizes) <= HEAD
    kept = bytes(Idempotency.objects.get(pk="large").response or b"")
    assert (kept[HEAD:], kept[1:33].hex()) == (stored[HEAD:], NEW)
    use(TWO)
    assert keyring.current().open_sealed(kept, place) == answer


def test_a_column_that_is_cut_short_is_told_and_left(sealed: Api, use: Use) -> None:
    """E-273: what has not even a whole head is no sealed value."""
    place = rotation.PLACES[1]
    Idempotency.objects.filter(id__contains="k-A").update(response=b"\x01" + bytes(HEAD - 2))
    use(TWO, ONE)
    with pytest.raises(CommandError, match="1 rows could not be read"):
        rotated()
    assert place.kek_ids()["0" * 64] == 1
    assert place.kek_ids()[NEW] == 3
