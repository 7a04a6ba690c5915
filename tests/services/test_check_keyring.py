"""``manage.py check_keyring`` says which keyring it looked at: another process may have another one."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from nylorun import config
from nylorun.access import keyring

pytestmark = pytest.mark.django_db

ONE, TWO = b"1" * 32, b"2" * 32
Use = Callable[[str], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    """Go on as a process that was started with another ``NYLORUN_KEYRING``."""

    def start_with(setting: str) -> None:
        changed = dataclasses.replace(config.current(), keyring=setting)
        monkeypatch.setattr(config, "current", lambda: changed)
        keyring.current.cache_clear()

    yield start_with
    monkeypatch.undo()
    keyring.current.cache_clear()


def text_of(*keys: bytes) -> str:
    return ",".join(base64.b64encode(key).decode() for key in keys)


def checked() -> str:
    shown = StringIO()
    call_command("check_keyring", stdout=shown)
    return shown.getvalue()


def test_it_names_the_variable_or_the_file_and_the_active_key(use: Use, tmp_path: Path) -> None:
    """E-69: the keyring that opens this database, by where it came from."""
    use(text_of(ONE))
    active = hashlib.sha256(ONE).hexdigest()[:12]
    assert checked().startswith(f"ok: the keyring in the variable NYLORUN_KEYRING (1 key, active {active}) opens")

    (tmp_path / "ring").write_text(text_of(TWO, ONE))
    use(f"file:{tmp_path / 'ring'}")
    active = hashlib.sha256(TWO).hexdigest()[:12]
    assert checked().startswith(f"ok: the keyring of the file {tmp_path / 'ring'} (2 keys, active {active}) opens")


def test_a_keyring_of_another_database_is_refused_by_where_it_came_from(use: Use, tmp_path: Path) -> None:
    """E-69."""
    use(text_of(ONE))
    checked()
    (tmp_path / "ring").write_text(text_of(TWO))
    use(f"file:{tmp_path / 'ring'}")
    with pytest.raises(CommandError, match=f"The keyring of the file {tmp_path / 'ring'} cannot open the canary"):
        checked()
    use("file:/nowhere")
    with pytest.raises(CommandError, match="NYLORUN_KEYRING: The keyring file /nowhere cannot be read"):
        checked()
