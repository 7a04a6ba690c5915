"""The S3 store's own sides: URLs, what is missing and what is merely out of reach."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from nylorun.blobs import BlobMissing, FileSystemStore, S3Store, StoreUnavailable, store_for

KEY = "a" * 64


def test_a_url_names_a_folder(tmp_path: Path) -> None:
    """``file:`` with a path, escaped where it must be, in both ways to write it."""
    for number, url in enumerate((f"file:{tmp_path}/a%20b", f"file://{tmp_path}/c")):
        store = store_for(url)
        assert isinstance(store, FileSystemStore)
        assert store.folder == str(tmp_path / ("a b", "c")[number])


@pytest.mark.parametrize(
    "url", ["", "/var/blobs", "file:", "http://host/x", "s3:", "s3:///x", "file://host/x", "s3://bucket?colour=red"]
)
def test_other_urls_are_refused(url: str) -> None:
    """At once, in words."""
    with pytest.raises(ValueError, match=r"store|option"):
        store_for(url)


def test_prefixes_share_a_bucket(s3_endpoint: str, s3_bucket: str) -> None:
    """Two installations in one bucket do not see each other's blobs; objects lie below two digits."""
    options = f"?endpoint={s3_endpoint}&region=us-east-1"
    one, two, whole = (store_for(f"s3://{s3_bucket}{prefix}{options}") for prefix in ("/one", "/two/deep/", ""))
    one.put(KEY, b"one")
    two.put(KEY, b"second")
    assert (one.get(KEY), two.get(KEY)) == (b"one", b"second")
    assert [blob.size for blob in one.list()] == [3]
    one.delete(KEY)
    assert two.has(KEY)
    whole.put(KEY, b"")
    client: Any = whole._client  # type: ignore[attr-defined] # what lies in the bucket is not part of a store's face
    found = client.list_objects_v2(Bucket=s3_bucket)["Contents"]
    assert {item["Key"] for item in found} == {f"two/deep/aa/{KEY}", f"aa/{KEY}"}


def test_long_lists_come_in_pages(s3_endpoint: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 gives a thousand objects at a time; here seven."""
    monkeypatch.setattr("nylorun.blobs.s3.PAGE", 7)
    store = store_for(f"s3://{s3_bucket}/p?endpoint={s3_endpoint}&region=us-east-1")
    keys = {f"{number:064x}" for number in range(24)}
    for key in keys:
        store.put(key, b"")
    assert {blob.key for blob in store.list()} == keys


def test_a_bucket_that_is_not_there_has_not_lost_its_blobs(s3_endpoint: str, s3_credentials: None) -> None:
    """Unknown is not gone: only a bucket that answers says "missing"."""
    store = S3Store("no-such-bucket", endpoint=s3_endpoint, region="us-east-1")
    for call in (
        lambda: store.get(KEY),
        lambda: store.put(KEY, b""),
        lambda: list(store.list()),
        store.check,
    ):
        with pytest.raises(StoreUnavailable, match="no-such-bucket"):
            call()


def test_a_server_that_does_not_answer_is_unavailable(s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-227: connection refused, on a port that nobody serves."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        store = S3Store("bucket", endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}", region="us-east-1")
        for call in (store.get, store.has, store.delete):
            with pytest.raises(StoreUnavailable, match="bucket"):
                call(KEY)


def test_without_credentials_the_store_is_unavailable(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says so."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreUnavailable, match="credentials"):
        S3Store("bucket", endpoint=s3_endpoint, region="us-east-1").check()


def test_an_endpoint_that_is_none_is_unavailable(s3_credentials: None) -> None:
    """A typing error in the configuration."""
    with pytest.raises(StoreUnavailable, match="client"):
        S3Store("bucket", endpoint="nonsense", region="us-east-1")


def test_without_boto3_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(StoreUnavailable, match=r"nylorun\[s3\]"):
        S3Store("bucket")


def test_a_missing_object_is_missing(s3_endpoint: str, s3_bucket: str) -> None:
    """Said by head and by get in two ways."""
    store = S3Store(s3_bucket, endpoint=s3_endpoint, region="us-east-1")
    assert not store.has(KEY)
    with pytest.raises(BlobMissing):
        store.get(KEY)
