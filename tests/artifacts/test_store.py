"""The store of this installation: where the setting says, one for all threads, checked before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manifests import store as stores
from nylorun import config
from nylorun.blobs import FileSystemStore, MemoryStore, blob_id, store_for, write_blob
from nylorun.config import ConfigError
from nylorun.kernel.errors import ServiceUnavailable
from tests.unit.test_config import NEEDED


def test_blobs_lie_in_the_data_folder_unless_it_is_said(tmp_path: Path) -> None:
    """E-129: whatever its name is made of."""
    folder = tmp_path / "a b#%41?ä"
    url = config.load({**NEEDED, "NYLORUN_DATA_DIR": str(folder)}).blobs
    write_blob(store_for(url), b"1")
    assert (folder / "blobs").is_dir()
    assert list((folder / "blobs").rglob(blob_id(b"1")))


@pytest.mark.parametrize(
    "url",
    ["file:/srv/blobs", "file:/srv/a%20b", "s3://bucket", "s3://bucket/some/prefix", "s3://my.bucket-1?region=eu-1",
     "s3://bucket/p?endpoint=http://127.0.0.1:9000&region=x", "s3://bucket?endpoint=https://s3.example.org"],
)  # fmt: skip
def test_what_names_a_store_is_taken(url: str) -> None:
    assert config.load({**NEEDED, "NYLORUN_BLOBS": url}).blobs == url


@pytest.mark.parametrize(
    "url",
    ["", "blobs", "/srv/blobs", "file:blobs", "file:/", "file://host/srv", "file:/srv?x=1", "s3:bucket", "s3://", "s3://B",
     "s3://bucket?secret=1", "s3://key:secret-word@bucket", "s3://bucket?endpoint=ftp://x", "s3://bucket?endpoint=",
     "s3://bucket?region", "http://bucket", "s3://[bucket"],
)  # fmt: skip
def test_what_names_none_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^NYLORUN_BLOBS must be") as caught:
        config.load({**NEEDED, "NYLORUN_BLOBS": url})
    assert "\n" not in str(caught.value)
    assert "secret-word" not in str(caught.value)


def test_one_store_is_made_of_the_setting(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stores.current_store() is store
    monkeypatch.setattr(stores._Instead, "store", None)
    settings = type("Settings", (), {"blobs": f"file:{tmp_path}/blobs"})
    monkeypatch.setattr(stores, "config", type("Config", (), {"current": staticmethod(lambda: settings)}))
    made = stores.current_store()
    assert isinstance(made, FileSystemStore)
    assert stores.current_store() is made
    assert stores.check() is None


def test_failures_of_a_disk_are_told_as_an_unavailable_service(store: Any) -> None:
    """E-129: what the store or the disk below it cannot do is 503, never a bug of ours."""
    with pytest.raises(ServiceUnavailable), stores.answering():
        raise OSError(28, "No space left on device")
